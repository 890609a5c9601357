// What a program in Go does with queues, by the SDK of AWS. It panics if anything is not as with
// Amazon SQS.
//
// Arguments: the endpoint, and the beginning of the names of its queues. The key is in AWS's
// variables; without one, requests are not signed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptrace"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

const (
	mebibyte   = 1 << 20
	work       = 500
	workers    = 8
	invalid    = "InvalidParameterValue"
	notVisible = types.QueueAttributeNameApproximateNumberOfMessagesNotVisible
)

var (
	ctx      = context.Background()
	settings aws.Config
	client   *sqs.Client
	name     string
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(is bool, format string, given ...any) {
	if !is {
		panic(fmt.Sprintf(format, given...))
	}
}

func same(wanted, found any) {
	check(reflect.DeepEqual(wanted, found), "%+v in place of %+v", found, wanted)
}

// fails checks that a call's error is of a type of the SDK.
func fails[E error](_ any, err error) func(status int) {
	var wanted E
	check(errors.As(err, &wanted), "%T in place of %T: %v", err, wanted, err)
	return func(status int) {
		var response *awshttp.ResponseError
		check(errors.As(err, &response), "no response: %v", err)
		same(status, response.HTTPStatusCode())
	}
}

// failsWith checks an error for which the SDK has no type.
func failsWith(_ any, err error) func(status int, code string) {
	var found smithy.APIError
	check(errors.As(err, &found), "no error of the API: %v", err)
	return func(status int, code string) {
		same(code, found.ErrorCode())
		fails[smithy.APIError](nil, err)(status)
	}
}

func receive(queue *string, more ...func(*sqs.ReceiveMessageInput)) []types.Message {
	input := sqs.ReceiveMessageInput{
		QueueUrl:              queue,
		MaxNumberOfMessages:   10,
		WaitTimeSeconds:       5,
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameAll,
		},
	}
	for _, one := range more {
		one(&input)
	}
	return must(client.ReceiveMessage(ctx, &input)).Messages
}

func one(queue *string, more ...func(*sqs.ReceiveMessageInput)) types.Message {
	found := receive(queue, more...)
	same(1, len(found))
	return found[0]
}

func send(queue *string, body string) {
	must(client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: queue, MessageBody: &body}))
}

func remove(queue *string, message types.Message) {
	must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: queue, ReceiptHandle: message.ReceiptHandle,
	}))
}

func attribute(queue *string, name types.QueueAttributeName) string {
	found := must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: queue, AttributeNames: []types.QueueAttributeName{name},
	}))
	return found.Attributes[string(name)]
}

func entries(count, from int) []types.SendMessageBatchRequestEntry {
	found := make([]types.SendMessageBatchRequestEntry, count)
	for at := range found {
		found[at].Id = aws.String(fmt.Sprintf("e%d", at))
		found[at].MessageBody = aws.String(fmt.Sprintf("m-%d", from+at))
	}
	return found
}

func names(urls []string) []string {
	found := []string{}
	for _, one := range urls {
		found = append(found, one[strings.LastIndex(one, "/")+1:])
	}
	return found
}

// makeQueues makes a queue with attributes and tags, its dead-letter queue, and one whose messages
// die.
func makeQueues() (queue, dead, dying *string) {
	create := func(name string, attributes, tags map[string]string) (*sqs.CreateQueueOutput, error) {
		return client.CreateQueue(ctx, &sqs.CreateQueueInput{
			QueueName: &name, Attributes: attributes, Tags: tags,
		})
	}
	dead = must(create(name+"-dead", nil, nil)).QueueUrl
	arn := attribute(dead, types.QueueAttributeNameQueueArn)
	policy := string(must(json.Marshal(map[string]any{
		"deadLetterTargetArn": arn, "maxReceiveCount": 1,
	})))
	attributes := map[string]string{
		"RedrivePolicy": policy, "VisibilityTimeout": "60", "MessageRetentionPeriod": "86400",
	}
	tags := map[string]string{"team": "a", "cost": "7"}
	queue = must(create(name, attributes, tags)).QueueUrl
	same(*queue, *must(create(name, attributes, tags)).QueueUrl)
	found := must(client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name}))
	same(*queue, *found.QueueUrl)
	fails[*types.QueueNameExists](create(name, map[string]string{"VisibilityTimeout": "61"}, nil))(400)

	set := func(name, text string) {
		must(client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: queue, Attributes: map[string]string{name: text},
		}))
	}
	set("RedrivePolicy", "")
	set("DelaySeconds", "1")
	same("", attribute(queue, types.QueueAttributeNameRedrivePolicy))
	same("1", attribute(queue, types.QueueAttributeNameDelaySeconds))
	same("60", attribute(queue, types.QueueAttributeNameVisibilityTimeout))
	same(strconv.Itoa(mebibyte), attribute(queue, types.QueueAttributeNameMaximumMessageSize))
	set("DelaySeconds", "0")

	must(client.TagQueue(ctx, &sqs.TagQueueInput{
		QueueUrl: queue, Tags: map[string]string{"stage": "test", "cost": "8"},
	}))
	must(client.UntagQueue(ctx, &sqs.UntagQueueInput{QueueUrl: queue, TagKeys: []string{"team"}}))
	there := must(client.ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: queue}))
	same(map[string]string{"stage": "test", "cost": "8"}, there.Tags)

	dying = must(create(name+"-dying", map[string]string{"RedrivePolicy": policy}, nil)).QueueUrl
	pages := [][]string{}
	lists := sqs.NewListQueuesPaginator(client, &sqs.ListQueuesInput{
		QueueNamePrefix: &name, MaxResults: aws.Int32(2),
	})
	for lists.HasMorePages() {
		pages = append(pages, names(must(lists.NextPage(ctx)).QueueUrls))
	}
	same([][]string{{name, name + "-dead"}, {name + "-dying"}}, pages)
	sources := must(client.ListDeadLetterSourceQueues(ctx, &sqs.ListDeadLetterSourceQueuesInput{
		QueueUrl: dead,
	}))
	same([]string{name + "-dying"}, names(sources.QueueUrls))
	// It dies while the rest goes on; deadLetters looks at it in the end.
	send(dying, "bad")
	one(dying, func(input *sqs.ReceiveMessageInput) { input.VisibilityTimeout = 1 })
	return queue, dead, dying
}

// The SDK compares the MD5 of bodies by itself, and fails if one is wrong.
func oneMessage(queue *string) {
	must(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl:     queue,
		MessageBody:  aws.String("one \u00e9 \U0001f600\r\n<&>"),
		DelaySeconds: 1,
		MessageAttributes: map[string]types.MessageAttributeValue{
			"text":   {DataType: aws.String("String"), StringValue: aws.String("t \u00e9")},
			"number": {DataType: aws.String("Number.int"), StringValue: aws.String("7")},
			"bytes":  {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255, 7}},
		},
		MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
			"AWSTraceHeader": {DataType: aws.String("String"), StringValue: aws.String("Root=1")},
		},
	}))
	first := one(queue)
	same("one \u00e9 \U0001f600\r\n<&>", *first.Body)
	same("t \u00e9", *first.MessageAttributes["text"].StringValue)
	same("Number.int", *first.MessageAttributes["number"].DataType)
	same([]byte{0, 255, 7}, first.MessageAttributes["bytes"].BinaryValue)
	same("1", first.Attributes["ApproximateReceiveCount"])
	same("Root=1", first.Attributes["AWSTraceHeader"])
	same("1", attribute(queue, notVisible))

	change := func(message types.Message, seconds int32) (*sqs.ChangeMessageVisibilityOutput, error) {
		return client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
			QueueUrl: queue, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: seconds,
		})
	}
	must(change(first, 0))
	again := one(queue)
	same(*first.MessageId, *again.MessageId)
	same("2", again.Attributes["ApproximateReceiveCount"])
	remove(queue, again)
	remove(queue, again)
	fails[*types.MessageNotInflight](change(again, 5))(400)
}

func batches(queue *string) {
	given := entries(10, 0)
	given[3].DelaySeconds = 901
	sent := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: queue, Entries: given,
	}))
	same(9, len(sent.Successful))
	same(1, len(sent.Failed))
	same("e3", *sent.Failed[0].Id)
	check(sent.Failed[0].SenderFault, "whose fault is it?")
	same(invalid, *sent.Failed[0].Code)

	removals := []types.DeleteMessageBatchRequestEntry{}
	changes := []types.ChangeMessageVisibilityBatchRequestEntry{}
	for len(removals) < 9 {
		found := receive(queue)
		check(len(found) > 0, "%d messages of 9", len(removals))
		for _, got := range found {
			id := aws.String(fmt.Sprintf("d%d", len(removals)))
			removals = append(removals, types.DeleteMessageBatchRequestEntry{
				Id: id, ReceiptHandle: got.ReceiptHandle,
			})
			changes = append(changes, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: id, ReceiptHandle: got.ReceiptHandle, VisibilityTimeout: 90,
			})
		}
	}
	changed := must(client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: queue, Entries: changes,
	}))
	same([]int{9, 0}, []int{len(changed.Successful), len(changed.Failed)})
	removals = append(removals, types.DeleteMessageBatchRequestEntry{
		Id: aws.String("x"), ReceiptHandle: aws.String("no receipt"),
	})
	removed := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: queue, Entries: removals,
	}))
	same([]int{9, 1}, []int{len(removed.Successful), len(removed.Failed)})
	same("ReceiptHandleIsInvalid", *removed.Failed[0].Code)
	same(0, len(receive(queue, func(input *sqs.ReceiveMessageInput) { input.WaitTimeSeconds = 0 })))
}

func bigMessages(queue *string) {
	for _, part := range []string{"x", "\u00e9", "\n"} {
		body := strings.Repeat(part, mebibyte/len(part))
		send(queue, body)
		got := one(queue)
		check(*got.Body == body, "another body of %d bytes", len(*got.Body))
		remove(queue, got)
	}
	failsWith(client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: queue, MessageBody: aws.String(strings.Repeat("x", mebibyte+1)),
	}))(400, invalid)
	both := entries(2, 0)
	for at := range both {
		both[at].MessageBody = aws.String(strings.Repeat("x", mebibyte/2+1))
	}
	fails[*types.BatchRequestTooLong](client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: queue, Entries: both,
	}))(400)
}

func mistakes(queue *string) {
	put := func(queue, body string, delay int32) (*sqs.SendMessageOutput, error) {
		return client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: &queue, MessageBody: &body, DelaySeconds: delay,
		})
	}
	batch := func(given []types.SendMessageBatchRequestEntry, ids ...string) (any, error) {
		for at, id := range ids {
			given[at].Id = aws.String(id)
		}
		return client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: queue, Entries: given,
		})
	}
	set := func(name, text string) (any, error) {
		return client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: queue, Attributes: map[string]string{name: text},
		})
	}
	fails[*types.QueueDoesNotExist](put(*queue+"-none", "x", 0))(400)
	fails[*types.QueueDoesNotExist](client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{
		QueueName: aws.String(name + "-none"),
	}))(400)
	fails[*types.ReceiptHandleIsInvalid](client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: queue, ReceiptHandle: aws.String("no receipt"),
	}))(400)
	fails[*types.InvalidMessageContents](put(*queue, "\u0001", 0))(400)
	failsWith(put(*queue, "x", 901))(400, invalid)
	fails[*types.EmptyBatchRequest](batch(entries(0, 0)))(400)
	fails[*types.TooManyEntriesInBatchRequest](batch(entries(11, 0)))(400)
	fails[*types.BatchEntryIdsNotDistinct](batch(entries(2, 0), "e", "e"))(400)
	fails[*types.InvalidBatchEntryId](batch(entries(2, 0), "a b"))(400)
	fails[*types.InvalidAttributeName](set("Unknown", "1"))(400)
	fails[*types.InvalidAttributeValue](set("VisibilityTimeout", "-1"))(400)
	none := attribute(queue, types.QueueAttributeNameQueueArn) + "-none"
	fails[*types.ResourceNotFoundException](client.StartMessageMoveTask(
		ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &none},
	))(404)
}

// addresses: only the path of a queue's URL counts.
func addresses(queue *string) {
	path := must(url.Parse(*queue)).Path
	for _, one := range []string{path, "https://sqs.eu-central-1.amazonaws.com" + path} {
		same("0", attribute(&one, types.QueueAttributeNameDelaySeconds))
	}
}

// connections: calls share connections, and one that the server has closed while it was idle is no
// failure.
func connections(queue *string) {
	var opened atomic.Int32
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) {
			if !got.Reused {
				opened.Add(1)
			}
		},
	})
	own := sqs.NewFromConfig(settings, func(options *sqs.Options) {
		options.HTTPClient = awshttp.NewBuildableClient()
	})
	ask := func() {
		must(own.GetQueueAttributes(traced, &sqs.GetQueueAttributesInput{QueueUrl: queue}))
	}
	for range 20 {
		ask()
	}
	// On a busy machine, Go itself gives up a connection that was slow to say that it has written.
	check(opened.Load() < 20, "each of 20 calls had a connection of its own")
	twice := func() {
		var both sync.WaitGroup
		for range 2 {
			both.Go(ask)
		}
		both.Wait()
	}
	twice()
	// The server closes an idle connection while this waits.
	none := must(own.ReceiveMessage(traced, &sqs.ReceiveMessageInput{
		QueueUrl: queue, WaitTimeSeconds: 3,
	}))
	same(0, len(none.Messages))
	twice()

	var got types.Message
	var waiting sync.WaitGroup
	waiting.Go(func() {
		got = one(queue, func(input *sqs.ReceiveMessageInput) { input.WaitTimeSeconds = 20 })
	})
	send(queue, "at last")
	began := time.Now()
	waiting.Wait()
	check(time.Since(began) < 10*time.Second, "a waiting receive ends when a message comes")
	same("at last", *got.Body)
	remove(queue, got)
}

// loop: several goroutines send, and several receive and delete what they got together.
func loop(queue *string) {
	var sending sync.WaitGroup
	for from := 0; from < work; from += 10 {
		sending.Go(func() {
			sent := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
				QueueUrl: queue, Entries: entries(10, from),
			}))
			same(10, len(sent.Successful))
		})
	}
	var lock sync.Mutex
	times := map[string]int{}
	left := func() int {
		lock.Lock()
		defer lock.Unlock()
		return work - len(times)
	}
	consume := func() {
		for left() > 0 {
			found := receive(queue, func(input *sqs.ReceiveMessageInput) { input.WaitTimeSeconds = 1 })
			removals := make([]types.DeleteMessageBatchRequestEntry, len(found))
			for at, got := range found {
				removals[at] = types.DeleteMessageBatchRequestEntry{
					Id: got.MessageId, ReceiptHandle: got.ReceiptHandle,
				}
				lock.Lock()
				times[*got.Body]++
				lock.Unlock()
			}
			if len(removals) > 0 {
				removed := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
					QueueUrl: queue, Entries: removals,
				}))
				same(len(removals), len(removed.Successful))
			}
		}
	}
	var consuming sync.WaitGroup
	for range workers {
		consuming.Go(consume)
	}
	sending.Wait()
	consuming.Wait()
	for body, count := range times {
		check(count == 1, "%s came %d times", body, count)
	}

	// A receive that is cut off keeps no message from others.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := client.ReceiveMessage(short, &sqs.ReceiveMessageInput{
		QueueUrl: queue, WaitTimeSeconds: 20,
	})
	check(errors.Is(err, context.DeadlineExceeded), "%v", err)
	send(queue, "afterwards")
	got := one(queue)
	same("afterwards", *got.Body)
	remove(queue, got)
}

func purge(queue *string) {
	must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: queue, Entries: entries(10, 0),
	}))
	must(client.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: queue}))
	same(0, len(receive(queue, func(input *sqs.ReceiveMessageInput) { input.WaitTimeSeconds = 0 })))
	fails[*types.PurgeQueueInProgress](client.PurgeQueue(ctx, &sqs.PurgeQueueInput{
		QueueUrl: queue,
	}))(403)
}

func deadLetters(dead, dying *string) {
	long := func(input *sqs.ReceiveMessageInput) { input.WaitTimeSeconds = 20 }
	letters := []types.Message{}
	for at := 0; at < 6 && len(letters) == 0; at++ {
		letters = receive(dead, long, func(input *sqs.ReceiveMessageInput) {
			input.VisibilityTimeout = 1
		})
	}
	same(1, len(letters))
	same("bad", *letters[0].Body)
	source := letters[0].Attributes["DeadLetterQueueSourceArn"]
	same(attribute(dying, types.QueueAttributeNameQueueArn), source)
	arn := attribute(dead, types.QueueAttributeNameQueueArn)
	for attribute(dead, types.QueueAttributeNameApproximateNumberOfMessages) != "1" {
		time.Sleep(100 * time.Millisecond)
	}
	started := must(client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &arn}))
	back := one(dying, long)
	same("bad", *back.Body)
	remove(dying, back)
	status := "RUNNING"
	for status == "RUNNING" {
		found := must(client.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{
			SourceArn: &arn,
		})).Results[0]
		status = *found.Status
	}
	same("COMPLETED", status)
	fails[*types.UnsupportedOperation](client.CancelMessageMoveTask(
		ctx, &sqs.CancelMessageMoveTaskInput{TaskHandle: started.TaskHandle},
	))(400)
}

func wrongKeys(queue *string) {
	call := func(id, secret string) (any, error) {
		other := sqs.NewFromConfig(settings, func(options *sqs.Options) {
			options.Credentials = credentials.NewStaticCredentialsProvider(id, secret, "")
		})
		return other.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: queue})
	}
	id, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	must(call(id, secret))
	failsWith(call(id, "wrong"))(403, "SignatureDoesNotMatch")
	failsWith(call("CQAKNONE", secret))(403, "InvalidClientTokenId")
}

func main() {
	name = os.Args[2]
	isSigned := os.Getenv("AWS_ACCESS_KEY_ID") != ""
	options := []func(*config.LoadOptions) error{
		config.WithBaseEndpoint(os.Args[1]), config.WithRegion("eu-central-1"),
	}
	if !isSigned {
		options = append(options, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	settings = must(config.LoadDefaultConfig(ctx, options...))
	client = sqs.NewFromConfig(settings)

	queue, dead, dying := makeQueues()
	for _, part := range []func(*string){
		oneMessage, batches, bigMessages, mistakes, addresses, connections, loop, purge,
	} {
		part(queue)
	}
	deadLetters(dead, dying)
	if isSigned {
		wrongKeys(queue)
	}
	for _, one := range slices.Backward([]*string{dead, dying, queue}) {
		must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: one}))
		fails[*types.QueueDoesNotExist](client.PurgeQueue(ctx, &sqs.PurgeQueueInput{
			QueueUrl: one,
		}))(400)
	}
}
