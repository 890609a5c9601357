// What a program in Java does with queues, by the SDK of AWS and its batch manager. It throws if
// anything is not as with Amazon SQS.
//
// Arguments: the endpoint, and the beginning of the names of its queues. The key is in AWS's
// variables; without one, requests are not signed.

import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.DELAY_SECONDS;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.MESSAGE_RETENTION_PERIOD;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.QUEUE_ARN;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.REDRIVE_POLICY;
import static software.amazon.awssdk.services.sqs.model.QueueAttributeName.VISIBILITY_TIMEOUT;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.apache5.Apache5HttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.batchmanager.SqsAsyncBatchManager;
import software.amazon.awssdk.services.sqs.model.BatchEntryIdsNotDistinctException;
import software.amazon.awssdk.services.sqs.model.BatchRequestTooLongException;
import software.amazon.awssdk.services.sqs.model.EmptyBatchRequestException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeNameException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeValueException;
import software.amazon.awssdk.services.sqs.model.InvalidBatchEntryIdException;
import software.amazon.awssdk.services.sqs.model.InvalidMessageContentsException;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageNotInflightException;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeNameForSends;
import software.amazon.awssdk.services.sqs.model.PurgeQueueInProgressException;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.QueueNameExistsException;
import software.amazon.awssdk.services.sqs.model.ReceiptHandleIsInvalidException;
import software.amazon.awssdk.services.sqs.model.ReceiveMessageRequest;
import software.amazon.awssdk.services.sqs.model.ResourceNotFoundException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SqsException;
import software.amazon.awssdk.services.sqs.model.TooManyEntriesInBatchRequestException;
import software.amazon.awssdk.services.sqs.model.UnsupportedOperationException;

public final class Queues {
    private static final int MEBIBYTE = 1 << 20;
    private static final int WORK = 500;
    private static final String INVALID = "InvalidParameterValue";

    private final SqsClient sqs;
    private final URI endpoint;
    private final String name;

    private Queues(URI endpoint, String name) {
        this.endpoint = endpoint;
        this.name = name;
        sqs = at(SqsClient.builder(), credentials()).build();
    }

    public static void main(String[] given) throws Exception {
        Queues queues = new Queues(URI.create(given[0]), given[1]);
        queues.run();
        queues.sqs.close();
    }

    private void run() throws Exception {
        String dead = create(name + "-dead", Map.of());
        Map<QueueAttributeName, String> policy = Map.of(REDRIVE_POLICY, String.format(
            "{\"deadLetterTargetArn\":\"%s\",\"maxReceiveCount\":\"1\"}", attribute(dead, QUEUE_ARN)));
        String dying = create(name + "-dying", policy);
        // It dies while the rest goes on; deadLetters looks at it in the end.
        sqs.sendMessage(request -> request.queueUrl(dying).messageBody("bad"));
        one(dying, request -> request.visibilityTimeout(0));

        String queue = makeQueue(dead, policy);
        oneMessage(queue);
        batches(queue);
        bigMessages(queue);
        mistakes(queue);
        addresses(queue);
        connections(queue);
        batchManager(queue);
        purge(queue);
        deadLetters(dead, dying);
        if (isSigned()) {
            wrongKeys(queue);
        }
        for (String url : List.of(queue, dying, dead)) {
            sqs.deleteQueue(request -> request.queueUrl(url));
            fails(QueueDoesNotExistException.class, 400,
                () -> sqs.purgeQueue(request -> request.queueUrl(url)));
        }
    }

    private static boolean isSigned() {
        return System.getenv("AWS_ACCESS_KEY_ID") != null;
    }

    private static AwsCredentialsProvider credentials() {
        return isSigned()
            ? DefaultCredentialsProvider.builder().build()
            : AnonymousCredentialsProvider.create();
    }

    private <B extends AwsClientBuilder<B, ?>> B at(B builder, AwsCredentialsProvider credentials) {
        return builder
            .endpointOverride(endpoint)
            .region(Region.EU_CENTRAL_1)
            .credentialsProvider(credentials);
    }

    private static void check(boolean is, String text) {
        if (!is) {
            throw new AssertionError(text);
        }
    }

    private static void same(Object wanted, Object found) {
        check(wanted.equals(found), found + " in place of " + wanted);
    }

    private static <E extends SqsException> E fails(Class<E> type, int status, Runnable call) {
        try {
            call.run();
        } catch (SqsException error) {
            check(type.isInstance(error), error + " in place of " + type);
            same(status, error.statusCode());
            return type.cast(error);
        }
        throw new AssertionError("no " + type);
    }

    private static void failsWith(String code, int status, Runnable call) {
        same(code, fails(SqsException.class, status, call).awsErrorDetails().errorCode());
    }

    @SafeVarargs
    private List<Message> receive(String queue, Consumer<ReceiveMessageRequest.Builder>... more) {
        return sqs.receiveMessage(request -> {
            request.queueUrl(queue).maxNumberOfMessages(10).waitTimeSeconds(5)
                .messageAttributeNames("All")
                .messageSystemAttributeNames(MessageSystemAttributeName.ALL);
            for (Consumer<ReceiveMessageRequest.Builder> one : more) {
                one.accept(request);
            }
        }).messages();
    }

    @SafeVarargs
    private Message one(String queue, Consumer<ReceiveMessageRequest.Builder>... more) {
        List<Message> found = receive(queue, more);
        same(1, found.size());
        return found.get(0);
    }

    private void send(String queue, String body) {
        sqs.sendMessage(request -> request.queueUrl(queue).messageBody(body));
    }

    private void delete(String queue, Message message) {
        sqs.deleteMessage(request ->
            request.queueUrl(queue).receiptHandle(message.receiptHandle()));
    }

    private void change(String queue, Message message, int seconds) {
        sqs.changeMessageVisibility(request -> request.queueUrl(queue)
            .receiptHandle(message.receiptHandle()).visibilityTimeout(seconds));
    }

    private String create(String name, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(request -> request.queueName(name).attributes(attributes)).queueUrl();
    }

    private String attribute(String queue, QueueAttributeName name) {
        return sqs.getQueueAttributes(request -> request.queueUrl(queue).attributeNames(name))
            .attributes().getOrDefault(name, "");
    }

    private void set(String queue, QueueAttributeName name, String text) {
        sqs.setQueueAttributes(request -> request.queueUrl(queue).attributes(Map.of(name, text)));
    }

    private static SendMessageBatchRequestEntry entry(String id, String body) {
        return SendMessageBatchRequestEntry.builder().id(id).messageBody(body).build();
    }

    private static List<SendMessageBatchRequestEntry> entries(int count) {
        return IntStream.range(0, count).mapToObj(at -> entry("e" + at, "m-" + at)).toList();
    }

    private void sendBatch(String queue, List<SendMessageBatchRequestEntry> entries) {
        sqs.sendMessageBatch(request -> request.queueUrl(queue).entries(entries));
    }

    private static List<String> names(List<String> urls) {
        return urls.stream().map(url -> url.substring(url.lastIndexOf('/') + 1)).toList();
    }

    private String makeQueue(String dead, Map<QueueAttributeName, String> policy) {
        Map<QueueAttributeName, String> attributes = Map.of(
            REDRIVE_POLICY, policy.get(REDRIVE_POLICY), VISIBILITY_TIMEOUT, "60",
            MESSAGE_RETENTION_PERIOD, "86400");
        String queue = create(name, attributes);
        same(queue, create(name, attributes));
        same(queue, sqs.getQueueUrl(request -> request.queueName(name)).queueUrl());
        fails(QueueNameExistsException.class, 400,
            () -> create(name, Map.of(VISIBILITY_TIMEOUT, "61")));

        List<List<String>> pages = new ArrayList<>();
        sqs.listQueuesPaginator(request -> request.queueNamePrefix(name).maxResults(2))
            .forEach(page -> pages.add(names(page.queueUrls())));
        same(List.of(List.of(name, name + "-dead"), List.of(name + "-dying")), pages);
        same(List.of(name, name + "-dying"),
            names(sqs.listDeadLetterSourceQueues(request -> request.queueUrl(dead)).queueUrls()));

        set(queue, REDRIVE_POLICY, "");
        set(queue, DELAY_SECONDS, "1");
        same("", attribute(queue, REDRIVE_POLICY));
        same("1", attribute(queue, DELAY_SECONDS));
        same("60", attribute(queue, VISIBILITY_TIMEOUT));
        same("86400", attribute(queue, MESSAGE_RETENTION_PERIOD));
        set(queue, DELAY_SECONDS, "0");

        sqs.tagQueue(request -> request.queueUrl(queue).tags(Map.of("stage", "test", "cost", "8")));
        sqs.untagQueue(request -> request.queueUrl(queue).tagKeys("stage"));
        same(Map.of("cost", "8"), sqs.listQueueTags(request -> request.queueUrl(queue)).tags());
        return queue;
    }

    // The SDK compares the MD5 of bodies and of attributes by itself, and throws if one is wrong.
    private void oneMessage(String queue) {
        String body = "one \u00e9 \ud83d\ude00\r\n<&>";
        Map<String, MessageAttributeValue> attributes = Map.of(
            "text", MessageAttributeValue.builder()
                .dataType("String").stringValue("t \u00e9").build(),
            "number", MessageAttributeValue.builder()
                .dataType("Number.int").stringValue("7").build(),
            "bytes", MessageAttributeValue.builder()
                .dataType("Binary").binaryValue(SdkBytes.fromByteArray(new byte[] {0, -1, 7})).build());
        sqs.sendMessage(request -> request.queueUrl(queue).messageBody(body).delaySeconds(1)
            .messageAttributes(attributes)
            .messageSystemAttributes(Map.of(
                MessageSystemAttributeNameForSends.AWS_TRACE_HEADER,
                software.amazon.awssdk.services.sqs.model.MessageSystemAttributeValue.builder()
                    .dataType("String").stringValue("Root=1").build())));
        Message first = one(queue);
        same(body, first.body());
        same(attributes, first.messageAttributes());
        same("1", first.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT));
        same("Root=1", first.attributes().get(MessageSystemAttributeName.AWS_TRACE_HEADER));
        same("1",
            attribute(queue, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE));

        change(queue, first, 0);
        Message again = one(queue, request -> request.messageAttributeNames("te.*"));
        same(first.messageId(), again.messageId());
        same("2", again.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT));
        same(Set.of("text"), again.messageAttributes().keySet());
        delete(queue, again);
        delete(queue, again);
        fails(MessageNotInflightException.class, 400, () -> change(queue, again, 5));
    }

    private void batches(String queue) {
        List<SendMessageBatchRequestEntry> entries = new ArrayList<>(entries(10));
        entries.set(3, entries.get(3).toBuilder().delaySeconds(901).build());
        var sent = sqs.sendMessageBatch(request -> request.queueUrl(queue).entries(entries));
        same(9, sent.successful().size());
        same(List.of("e3"), sent.failed().stream().map(failure -> failure.id()).toList());
        same(INVALID, sent.failed().get(0).code());
        check(sent.failed().get(0).senderFault(), "whose fault is it?");

        List<Message> got = new ArrayList<>();
        while (got.size() < 9) {
            List<Message> some = receive(queue);
            check(!some.isEmpty(), got.size() + " messages of 9");
            got.addAll(some);
        }
        var changed = sqs.changeMessageVisibilityBatch(request -> request.queueUrl(queue).entries(
            got.stream().map(message -> software.amazon.awssdk.services.sqs.model
                .ChangeMessageVisibilityBatchRequestEntry.builder().id(message.messageId())
                .receiptHandle(message.receiptHandle()).visibilityTimeout(90).build()).toList()));
        same(List.of(9, 0), List.of(changed.successful().size(), changed.failed().size()));
        got.add(got.get(0).toBuilder().messageId("x").receiptHandle("no receipt").build());
        var deleted = sqs.deleteMessageBatch(request -> request.queueUrl(queue).entries(
            got.stream().map(message -> software.amazon.awssdk.services.sqs.model
                .DeleteMessageBatchRequestEntry.builder().id(message.messageId())
                .receiptHandle(message.receiptHandle()).build()).toList()));
        same(9, deleted.successful().size());
        same("ReceiptHandleIsInvalid", deleted.failed().get(0).code());
        same(List.of(), receive(queue, request -> request.waitTimeSeconds(0)));
    }

    private void bigMessages(String queue) {
        for (String body : List.of(
                "x".repeat(MEBIBYTE), "\u00e9".repeat(MEBIBYTE / 2), "\n".repeat(MEBIBYTE))) {
            send(queue, body);
            Message got = one(queue);
            check(body.equals(got.body()), "another body");
            delete(queue, got);
        }
        failsWith(INVALID, 400, () -> send(queue, "x".repeat(MEBIBYTE + 1)));
        String half = "x".repeat(MEBIBYTE / 2 + 1);
        fails(BatchRequestTooLongException.class, 400,
            () -> sendBatch(queue, List.of(entry("a", half), entry("b", half))));
    }

    private void mistakes(String queue) {
        fails(QueueDoesNotExistException.class, 400, () -> send(queue + "-none", "x"));
        fails(QueueDoesNotExistException.class, 400,
            () -> sqs.getQueueUrl(request -> request.queueName(name + "-none")));
        fails(ReceiptHandleIsInvalidException.class, 400, () -> sqs.deleteMessage(request ->
            request.queueUrl(queue).receiptHandle("no receipt")));
        fails(InvalidMessageContentsException.class, 400, () -> send(queue, "\u0001"));
        failsWith(INVALID, 400, () -> sqs.sendMessage(request ->
            request.queueUrl(queue).messageBody("x").delaySeconds(901)));
        fails(EmptyBatchRequestException.class, 400, () -> sendBatch(queue, List.of()));
        fails(TooManyEntriesInBatchRequestException.class, 400,
            () -> sendBatch(queue, entries(11)));
        fails(BatchEntryIdsNotDistinctException.class, 400,
            () -> sendBatch(queue, List.of(entry("e", "a"), entry("e", "b"))));
        fails(InvalidBatchEntryIdException.class, 400,
            () -> sendBatch(queue, List.of(entry("a b", "a"))));
        fails(InvalidAttributeNameException.class, 400, () -> sqs.setQueueAttributes(request ->
            request.queueUrl(queue).attributesWithStrings(Map.of("Unknown", "1"))));
        fails(InvalidAttributeValueException.class, 400,
            () -> set(queue, VISIBILITY_TIMEOUT, "-1"));
        String none = attribute(queue, QUEUE_ARN) + "-none";
        fails(ResourceNotFoundException.class, 404,
            () -> sqs.startMessageMoveTask(request -> request.sourceArn(none)));
    }

    /** Only the path of a queue's URL counts. */
    private void addresses(String queue) {
        String path = URI.create(queue).getPath();
        same("0", attribute(path, DELAY_SECONDS));
        same("0", attribute("https://sqs.eu-central-1.amazonaws.com" + path, DELAY_SECONDS));
    }

    /** A connection that the server has closed while it was idle is no failure. */
    private void connections(String queue) {
        SqsClient once = at(SqsClient.builder(), credentials())
            .overrideConfiguration(config -> config.retryStrategy(retry -> retry.maxAttempts(1)))
            .httpClientBuilder(Apache5HttpClient.builder().maxConnections(2))
            .build();
        Runnable ask = () -> once.getQueueAttributes(request -> request.queueUrl(queue));
        Runnable both = () ->
            CompletableFuture.allOf(
                CompletableFuture.runAsync(ask), CompletableFuture.runAsync(ask)).join();
        IntStream.range(0, 20).forEach(at -> ask.run());
        both.run();
        // The server closes an idle connection while this waits.
        check(once.receiveMessage(request -> request.queueUrl(queue).waitTimeSeconds(3))
            .messages().isEmpty(), "a message");
        both.run();
        once.close();

        var waiting = CompletableFuture.supplyAsync(
            () -> one(queue, request -> request.waitTimeSeconds(20)));
        send(queue, "at last");
        long began = System.nanoTime();
        delete(queue, waiting.join());
        check(System.nanoTime() - began < 10e9, "a waiting receive ends when a message comes");
    }

    /** The batch manager puts calls together that come one by one. */
    private void batchManager(String queue) throws Exception {
        SqsAsyncClient client = at(SqsAsyncClient.builder(), credentials()).build();
        ScheduledExecutorService scheduler = Executors.newScheduledThreadPool(2);
        SqsAsyncBatchManager manager = SqsAsyncBatchManager.builder().client(client)
            .scheduledExecutor(scheduler)
            .overrideConfiguration(config -> config
                .receiveMessageMinWaitDuration(Duration.ofSeconds(1))
                .receiveMessageVisibilityTimeout(Duration.ofSeconds(60))
                .receiveMessageSystemAttributeNames(
                    List.of(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT)))
            .build();
        Map<String, Integer> times = new ConcurrentHashMap<>();
        List<CompletableFuture<?>> deletes = new ArrayList<>();
        List<CompletableFuture<?>> sends = new ArrayList<>();
        for (int at = 0; at < WORK; at++) {
            String body = "m-" + at;
            sends.add(manager.sendMessage(request -> request.queueUrl(queue).messageBody(body)));
        }
        while (times.size() < WORK) {
            List<CompletableFuture<List<Message>>> receives = IntStream.range(0, 5)
                .mapToObj(at -> manager.receiveMessage(request ->
                    request.queueUrl(queue).maxNumberOfMessages(10).waitTimeSeconds(1))
                    .thenApply(found -> found.messages()))
                .toList();
            for (var received : receives) {
                for (Message message : received.join()) {
                    times.merge(message.body(), 1, Integer::sum);
                    same("1", message.attributes()
                        .get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT));
                    if (message.body().equals("m-7")) {
                        manager.changeMessageVisibility(request -> request.queueUrl(queue)
                            .receiptHandle(message.receiptHandle()).visibilityTimeout(90)).join();
                    }
                    deletes.add(manager.deleteMessage(request -> request.queueUrl(queue)
                        .receiptHandle(message.receiptHandle())));
                }
            }
        }
        sends.forEach(CompletableFuture::join);
        deletes.forEach(CompletableFuture::join);
        times.forEach((body, count) -> check(count == 1, body + " came " + count + " times"));
        try {
            manager.sendMessage(request -> request.queueUrl(queue + "-none").messageBody("x")).join();
            throw new AssertionError("no error");
        } catch (java.util.concurrent.CompletionException error) {
            check(error.getCause() instanceof QueueDoesNotExistException, "" + error.getCause());
        }
        manager.close();
        client.close();
        scheduler.shutdown();
    }

    private void purge(String queue) {
        sendBatch(queue, entries(10));
        sqs.purgeQueue(request -> request.queueUrl(queue));
        same(List.of(), receive(queue, request -> request.waitTimeSeconds(0)));
        fails(PurgeQueueInProgressException.class, 403,
            () -> sqs.purgeQueue(request -> request.queueUrl(queue)));
    }

    private void deadLetters(String dead, String dying) throws InterruptedException {
        List<Message> found = List.of();
        for (int at = 0; at < 6 && found.isEmpty(); at++) {
            found = receive(dead, request -> request.waitTimeSeconds(20).visibilityTimeout(0));
        }
        same(List.of("bad"), found.stream().map(Message::body).toList());
        same(attribute(dying, QUEUE_ARN), found.get(0).attributes()
            .get(MessageSystemAttributeName.DEAD_LETTER_QUEUE_SOURCE_ARN));
        String arn = attribute(dead, QUEUE_ARN);
        while (!attribute(dead, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES).equals("1")) {
            Thread.sleep(100);
        }
        String task = sqs.startMessageMoveTask(request -> request.sourceArn(arn)).taskHandle();
        Message back = one(dying, request -> request.waitTimeSeconds(20));
        same("bad", back.body());
        delete(dying, back);
        String status = "RUNNING";
        while (status.equals("RUNNING")) {
            status = sqs.listMessageMoveTasks(request -> request.sourceArn(arn))
                .results().get(0).status();
        }
        same("COMPLETED", status);
        fails(UnsupportedOperationException.class, 400,
            () -> sqs.cancelMessageMoveTask(request -> request.taskHandle(task)));
    }

    private void wrongKeys(String queue) {
        String id = System.getenv("AWS_ACCESS_KEY_ID");
        String secret = System.getenv("AWS_SECRET_ACCESS_KEY");
        failsWith("SignatureDoesNotMatch", 403, () -> asked(queue, id, "wrong"));
        failsWith("InvalidClientTokenId", 403, () -> asked(queue, "CQAKNONE", secret));
    }

    private void asked(String queue, String id, String secret) {
        AwsCredentialsProvider key =
            StaticCredentialsProvider.create(AwsBasicCredentials.create(id, secret));
        try (SqsClient other = at(SqsClient.builder(), key).build()) {
            other.getQueueAttributes(request -> request.queueUrl(queue));
        }
    }
}
