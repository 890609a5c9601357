// What a program in JavaScript does with a queue, by the SDK of AWS. It says what it has seen as a
// line of JSON; the test compares.
//
// Arguments: the endpoint, the name of a queue. The key is in AWS's variables.

import {
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  PurgeQueueCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SetQueueAttributesCommand,
  SQSClient,
  paginateListQueues,
} from "@aws-sdk/client-sqs";

const [endpoint, name] = process.argv.slice(2);
const sqs = new SQSClient({ endpoint, region: "eu-central-1", maxAttempts: 1 });
const said = {};

async function failure(command) {
  try {
    await sqs.send(command);
    return null;
  } catch (error) {
    return { name: error.name, status: error.$metadata?.httpStatusCode };
  }
}

async function receive(QueueUrl, more = {}) {
  const found = await sqs.send(
    new ReceiveMessageCommand({
      QueueUrl,
      MaxNumberOfMessages: 10,
      WaitTimeSeconds: 2,
      MessageAttributeNames: ["All"],
      MessageSystemAttributeNames: ["All"],
      ...more,
    }),
  );
  return found.Messages ?? [];
}

const Attributes = { VisibilityTimeout: "60" };
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: name, Attributes }));
said.sameUrl = QueueUrl === (await sqs.send(new GetQueueUrlCommand({ QueueName: name }))).QueueUrl;

// The SDK compares the MD5 sums of bodies by itself, and raises if one is wrong.
await sqs.send(
  new SendMessageCommand({
    QueueUrl,
    MessageBody: "one \u00e9 \u{1f600}",
    MessageAttributes: {
      text: { DataType: "String", StringValue: "t" },
      number: { DataType: "Number.int", StringValue: "7" },
      bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, 7]) },
    },
  }),
);
const [first] = await receive(QueueUrl);
said.first = {
  body: first.Body,
  text: first.MessageAttributes.text.StringValue,
  number: first.MessageAttributes.number,
  bytes: [...first.MessageAttributes.bytes.BinaryValue],
  receives: first.Attributes.ApproximateReceiveCount,
};

const handle = { QueueUrl, ReceiptHandle: first.ReceiptHandle };
await sqs.send(new ChangeMessageVisibilityCommand({ ...handle, VisibilityTimeout: 0 }));
const [again] = await receive(QueueUrl);
said.again = [again.MessageId === first.MessageId, again.Attributes.ApproximateReceiveCount];
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: again.ReceiptHandle }));

const Entries = Array.from({ length: 10 }, (_, at) => ({ Id: `e${at}`, MessageBody: `m-${at}` }));
const sent = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
said.sent = [sent.Successful.length, (sent.Failed ?? []).length];
const got = [];
while (got.length < Entries.length) {
  const some = await receive(QueueUrl);
  if (some.length === 0) break;
  got.push(...some);
}
said.bodies = got.map((one) => one.Body).sort();
const deleted = await sqs.send(
  new DeleteMessageBatchCommand({
    QueueUrl,
    Entries: got.map((one, at) => ({ Id: `d${at}`, ReceiptHandle: one.ReceiptHandle })),
  }),
);
said.deleted = [deleted.Successful.length, (deleted.Failed ?? []).length];
said.left = (await receive(QueueUrl, { WaitTimeSeconds: 0 })).length;

await sqs.send(new SetQueueAttributesCommand({ QueueUrl, Attributes: { VisibilityTimeout: "5" } }));
const all = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }));
said.attributes = [all.Attributes.VisibilityTimeout, all.Attributes.ApproximateNumberOfMessages];
await sqs.send(new PurgeQueueCommand({ QueueUrl }));

const others = ["a", "b", "c"].map((one) => `${name}-${one}`);
for (const QueueName of others) await sqs.send(new CreateQueueCommand({ QueueName }));
const listed = [];
const paging = { client: sqs, pageSize: 2 };
for await (const page of paginateListQueues(paging, { QueueNamePrefix: `${name}-` })) {
  listed.push((page.QueueUrls ?? []).map((url) => url.split("/").at(-1).slice(name.length)));
}
said.pages = listed;

const nowhere = QueueUrl.replace(name, `${name}-none`);
said.noQueue = await failure(new SendMessageCommand({ QueueUrl: nowhere, MessageBody: "x" }));
said.noReceipt = await failure(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: "no receipt" }));
said.tooLong = await failure(
  new SendMessageCommand({ QueueUrl, MessageBody: "x", DelaySeconds: 901 }),
);

for (const QueueName of [name, ...others]) {
  await sqs.send(new DeleteQueueCommand({ QueueUrl: QueueUrl.replace(name, QueueName) }));
}
console.log(JSON.stringify(said));
