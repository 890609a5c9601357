// What a program in JavaScript does with queues, by the SDK of AWS and sqs-consumer. It ends with
// an error if anything is not as with Amazon SQS.
//
// Arguments: the endpoint, and the beginning of the names of its queues. The key is in AWS's
// variables; without one, requests are not signed.

import assert from "node:assert/strict";
import { Agent } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

import {
  BatchEntryIdsNotDistinct,
  BatchRequestTooLong,
  EmptyBatchRequest,
  InvalidAttributeName,
  InvalidAttributeValue,
  InvalidBatchEntryId,
  InvalidMessageContents,
  MessageNotInflight,
  PurgeQueueInProgress,
  QueueDoesNotExist,
  QueueNameExists,
  ReceiptHandleIsInvalid,
  ResourceNotFoundException,
  SQS,
  SQSServiceException,
  TooManyEntriesInBatchRequest,
  paginateListDeadLetterSourceQueues,
  paginateListQueues,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const [endpoint, name] = process.argv.slice(2);
const isSigned = process.env.AWS_ACCESS_KEY_ID !== undefined;
const MIB = 1_048_576;
const WORK = 500;

/** An agent that counts the connections that it opens. */
class CountingAgent extends Agent {
  opened = 0;

  constructor() {
    super({ keepAlive: true });
  }

  createConnection(...given) {
    this.opened += 1;
    return super.createConnection(...given);
  }
}

function client(more = {}) {
  const unsigned = {
    credentials: { accessKeyId: "none", secretAccessKey: "none" },
    signer: { sign: async (request) => request },
  };
  return new SQS({ region: "eu-central-1", ...(isSigned ? {} : unsigned), ...more });
}

const agent = new CountingAgent();
const sqs = client({ endpoint, requestHandler: { httpAgent: agent } });

async function fails(work, type, status, code) {
  const error = await work.then(
    () => assert.fail(`no ${type.name}`),
    (raised) => raised,
  );
  assert.ok(error instanceof type, `${error.name} in place of ${type.name}: ${error.message}`);
  assert.equal(error.$metadata.httpStatusCode, status, error.name);
  if (code !== undefined) assert.ok([error.name, error.Code].includes(code), error.name);
  assert.notEqual(error.message, "");
  return error;
}

async function receive(QueueUrl, more = {}) {
  const found = await sqs.receiveMessage({
    QueueUrl,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 5,
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
    ...more,
  });
  return found.Messages ?? [];
}

async function attributesOf(QueueUrl, ...AttributeNames) {
  return (await sqs.getQueueAttributes({ QueueUrl, AttributeNames })).Attributes;
}

async function pages(paginator, key) {
  const found = [];
  for await (const page of paginator) found.push((page[key] ?? []).map((url) => url.split("/").at(-1)));
  return found;
}

function entries(count, from = 0) {
  return Array.from({ length: count }, (_, at) => ({
    Id: `e${at}`,
    MessageBody: `m-${from + at}`,
  }));
}

/** A queue with attributes and tags, its dead-letter queue, and one whose messages die. */
async function makeQueues() {
  const { QueueUrl: dead } = await sqs.createQueue({ QueueName: `${name}-dead` });
  const { QueueArn: arn } = await attributesOf(dead, "QueueArn");
  assert.match(arn, /^arn:aws:sqs:[a-z0-9-]+:[0-9]{12}:/);
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: arn, maxReceiveCount: 1 });
  const Attributes = { RedrivePolicy, VisibilityTimeout: "60", MessageRetentionPeriod: "86400" };
  const wanted = { QueueName: name, Attributes, tags: { team: "a", cost: "7" } };
  const { QueueUrl: url } = await sqs.createQueue(wanted);

  assert.equal((await sqs.createQueue(wanted)).QueueUrl, url);
  assert.equal((await sqs.getQueueUrl({ QueueName: name })).QueueUrl, url);
  const other = { ...wanted, Attributes: { ...Attributes, VisibilityTimeout: "61" } };
  await fails(sqs.createQueue(other), QueueNameExists, 400);

  await sqs.setQueueAttributes({ QueueUrl: url, Attributes: { RedrivePolicy: "" } });
  await sqs.setQueueAttributes({ QueueUrl: url, Attributes: { DelaySeconds: "1" } });
  const all = await attributesOf(url, "All");
  assert.equal(all.RedrivePolicy, undefined);
  assert.deepEqual([all.DelaySeconds, all.VisibilityTimeout], ["1", "60"]);
  assert.deepEqual([all.MessageRetentionPeriod, all.MaximumMessageSize], ["86400", `${MIB}`]);
  await sqs.setQueueAttributes({ QueueUrl: url, Attributes: { DelaySeconds: "0" } });

  await sqs.tagQueue({ QueueUrl: url, Tags: { stage: "test", cost: "8" } });
  await sqs.untagQueue({ QueueUrl: url, TagKeys: ["team"] });
  assert.deepEqual((await sqs.listQueueTags({ QueueUrl: url })).Tags, { cost: "8", stage: "test" });

  const { QueueUrl: dying } = await sqs.createQueue({
    QueueName: `${name}-dying`,
    Attributes: { RedrivePolicy },
  });
  const paging = { client: sqs, pageSize: 2 };
  assert.deepEqual(await pages(paginateListQueues(paging, { QueueNamePrefix: name }), "QueueUrls"), [
    [name, `${name}-dead`],
    [`${name}-dying`],
  ]);
  assert.deepEqual(
    await pages(paginateListDeadLetterSourceQueues(paging, { QueueUrl: dead }), "queueUrls"),
    [[`${name}-dying`]],
  );
  // It dies while the rest goes on; `deadLetters` looks at it in the end.
  await sqs.sendMessage({ QueueUrl: dying, MessageBody: "bad" });
  assert.equal((await receive(dying, { VisibilityTimeout: 0 })).length, 1);
  return { url, dead, dying };
}

// The SDK compares the MD5 of bodies by itself, and raises if one is wrong.
async function oneMessage(QueueUrl) {
  await sqs.sendMessage({
    QueueUrl,
    MessageBody: "one \u00e9 \u{1f600}\r\n<&>",
    DelaySeconds: 1,
    MessageAttributes: {
      text: { DataType: "String", StringValue: "t \u00e9" },
      number: { DataType: "Number.int", StringValue: "7" },
      bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, 7]) },
    },
    MessageSystemAttributes: { AWSTraceHeader: { DataType: "String", StringValue: "Root=1" } },
  });
  const [first] = await receive(QueueUrl);
  assert.equal(first.Body, "one \u00e9 \u{1f600}\r\n<&>");
  assert.equal(first.MessageAttributes.text.StringValue, "t \u00e9");
  assert.deepEqual(first.MessageAttributes.number, { DataType: "Number.int", StringValue: "7" });
  assert.deepEqual([...first.MessageAttributes.bytes.BinaryValue], [0, 255, 7]);
  assert.equal(first.Attributes.ApproximateReceiveCount, "1");
  assert.equal(first.Attributes.AWSTraceHeader, "Root=1");
  const count = "ApproximateNumberOfMessagesNotVisible";
  assert.equal((await attributesOf(QueueUrl, count))[count], "1");

  const handle = { QueueUrl, ReceiptHandle: first.ReceiptHandle };
  await sqs.changeMessageVisibility({ ...handle, VisibilityTimeout: 0 });
  const [again] = await receive(QueueUrl, { MessageAttributeNames: ["te.*"] });
  assert.equal(again.MessageId, first.MessageId);
  assert.equal(again.Attributes.ApproximateReceiveCount, "2");
  assert.deepEqual(Object.keys(again.MessageAttributes), ["text"]);
  const last = { QueueUrl, ReceiptHandle: again.ReceiptHandle };
  await sqs.deleteMessage(last);
  await sqs.deleteMessage(last);
  await fails(sqs.changeMessageVisibility({ ...last, VisibilityTimeout: 5 }), MessageNotInflight, 400);
}

async function batches(QueueUrl) {
  const Entries = entries(10);
  Entries[3].DelaySeconds = 901;
  Entries[4].MessageAttributes = { n: { DataType: "Number", StringValue: "7" } };
  const sent = await sqs.sendMessageBatch({ QueueUrl, Entries });
  assert.equal(sent.Successful.length, 9);
  assert.deepEqual(
    sent.Failed.map((one) => [one.Id, one.SenderFault, one.Code]),
    [["e3", true, "InvalidParameterValue"]],
  );
  const got = [];
  while (got.length < 9) {
    const some = await receive(QueueUrl);
    assert.notEqual(some.length, 0);
    got.push(...some);
  }
  const handles = got.map((one, at) => ({ Id: `d${at}`, ReceiptHandle: one.ReceiptHandle }));
  const changed = await sqs.changeMessageVisibilityBatch({
    QueueUrl,
    Entries: handles.map((one) => ({ ...one, VisibilityTimeout: 90 })),
  });
  assert.deepEqual([changed.Successful.length, changed.Failed], [9, undefined]);
  const deleted = await sqs.deleteMessageBatch({
    QueueUrl,
    Entries: [...handles, { Id: "x", ReceiptHandle: "no receipt" }],
  });
  assert.equal(deleted.Successful.length, 9);
  assert.deepEqual(
    deleted.Failed.map((one) => [one.Id, one.SenderFault, one.Code]),
    [["x", true, "ReceiptHandleIsInvalid"]],
  );
  assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
}

async function bigMessages(QueueUrl) {
  for (const MessageBody of ["x".repeat(MIB), "\u00e9".repeat(MIB / 2), "\n".repeat(MIB)]) {
    await sqs.sendMessage({ QueueUrl, MessageBody });
    const [got] = await receive(QueueUrl);
    assert.ok(got.Body === MessageBody);
    await sqs.deleteMessage({ QueueUrl, ReceiptHandle: got.ReceiptHandle });
  }
  const tooLong = sqs.sendMessage({ QueueUrl, MessageBody: "x".repeat(MIB + 1) });
  await fails(tooLong, SQSServiceException, 400, "InvalidParameterValue");
  const Entries = entries(2).map((one) => ({ ...one, MessageBody: "x".repeat(MIB / 2 + 1) }));
  await fails(sqs.sendMessageBatch({ QueueUrl, Entries }), BatchRequestTooLong, 400);
}

async function errors(QueueUrl) {
  const nowhere = `${QueueUrl}-none`;
  const found = await fails(
    sqs.sendMessage({ QueueUrl: nowhere, MessageBody: "x" }),
    QueueDoesNotExist,
    400,
  );
  assert.equal(found.name, "QueueDoesNotExist");
  await fails(sqs.getQueueUrl({ QueueName: `${name}-none` }), QueueDoesNotExist, 400);
  await fails(sqs.deleteMessage({ QueueUrl, ReceiptHandle: "no" }), ReceiptHandleIsInvalid, 400);
  await fails(sqs.sendMessage({ QueueUrl, MessageBody: "\u0001" }), InvalidMessageContents, 400);
  const late = sqs.sendMessage({ QueueUrl, MessageBody: "x", DelaySeconds: 901 });
  await fails(late, SQSServiceException, 400, "InvalidParameterValue");
  const two = entries(2);
  const batch = (Entries) => sqs.sendMessageBatch({ QueueUrl, Entries });
  await fails(batch([]), EmptyBatchRequest, 400);
  await fails(batch(entries(11)), TooManyEntriesInBatchRequest, 400);
  await fails(batch(two.map((one) => ({ ...one, Id: "e" }))), BatchEntryIdsNotDistinct, 400);
  await fails(batch(two.map((one) => ({ ...one, Id: "a b" }))), InvalidBatchEntryId, 400);
  const set = (Attributes) => sqs.setQueueAttributes({ QueueUrl, Attributes });
  await fails(set({ Unknown: "1" }), InvalidAttributeName, 400);
  await fails(set({ VisibilityTimeout: "-1" }), InvalidAttributeValue, 400);
  const SourceArn = `${(await attributesOf(QueueUrl, "QueueArn")).QueueArn}-none`;
  await fails(sqs.startMessageMoveTask({ SourceArn }), ResourceNotFoundException, 404);
}

/** Only the path of a queue's URL counts; a client without an endpoint takes it from the URL. */
async function addresses(url) {
  const { pathname } = new URL(url);
  for (const QueueUrl of [pathname, `https://sqs.eu-central-1.amazonaws.com${pathname}`]) {
    assert.equal((await attributesOf(QueueUrl, "DelaySeconds")).DelaySeconds, "0");
  }
  const elsewhere = client({ logger: { warn() {}, debug() {}, info() {}, error() {} } });
  await elsewhere.sendMessage({ QueueUrl: url, MessageBody: "by its URL" });
  const [got] = await receive(url);
  assert.equal(got.Body, "by its URL");
  await elsewhere.deleteMessage({ QueueUrl: url, ReceiptHandle: got.ReceiptHandle });
  elsewhere.destroy();
}

/** Calls share connections, and one that the server has closed while it was idle is no failure. */
async function connections(QueueUrl) {
  const counted = new CountingAgent();
  const once = client({ endpoint, maxAttempts: 1, requestHandler: { httpAgent: counted } });
  const ask = () => once.getQueueAttributes({ QueueUrl, AttributeNames: ["QueueArn"] });
  for (let at = 0; at < 20; at += 1) await ask();
  assert.equal(counted.opened, 1);
  await Promise.all([ask(), ask()]);
  // The server closes the second one while the first one waits.
  const none = await once.receiveMessage({ QueueUrl, WaitTimeSeconds: 3 });
  assert.equal(none.Messages, undefined);
  await Promise.all([ask(), ask()]);
  assert.ok(counted.opened <= 3, `${counted.opened} connections`);

  const waiting = receive(QueueUrl, { WaitTimeSeconds: 20 });
  await sqs.sendMessage({ QueueUrl, MessageBody: "at last" });
  const began = Date.now();
  const [got] = await waiting;
  assert.ok(Date.now() - began < 10_000, "a waiting receive ends when a message comes");
  await sqs.deleteMessage({ QueueUrl, ReceiptHandle: got.ReceiptHandle });
  once.destroy();
}

/** Three consumers share the work; one message fails once, one takes longer than it is hidden. */
async function consumers(queueUrl) {
  const sends = [];
  for (let from = 0; from < WORK; from += 10) {
    sends.push(sqs.sendMessageBatch({ QueueUrl: queueUrl, Entries: entries(10, from) }));
  }
  for (const { Successful } of await Promise.all(sends)) assert.equal(Successful.length, 10);

  const times = new Map();
  const failures = [];
  let done = () => {};
  const isDone = new Promise((resolve) => (done = resolve));
  const handled = new Set();
  const processed = new Set();
  // A consumer extends a message until it has heard that the message is deleted: by then it is gone.
  const isLate = (error, message) =>
    /changing visibility.*not in flight/.test(error.message) && handled.has(message?.Body);
  async function work(message) {
    times.set(message.Body, (times.get(message.Body) ?? 0) + 1);
    if (message.Body === "m-7" && times.get("m-7") === 1) throw new Error("not yet");
    if (message.Body === "m-17") await sleep(9_000);
    handled.add(message.Body);
    return message;
  }
  const handlers = [
    { handleMessage: work },
    { handleMessage: work },
    { handleMessageBatch: (messages) => Promise.all(messages.map(work)) },
  ];
  const options = { batchSize: 10, waitTimeSeconds: 5, visibilityTimeout: 6, heartbeatInterval: 2 };
  const all = handlers.map((handler) =>
    Consumer.create({ queueUrl, sqs, terminateVisibilityTimeout: true, ...options, ...handler }),
  );
  for (const consumer of all) {
    consumer.on("message_processed", ({ Body }) => {
      processed.add(Body);
      if (processed.size === WORK) done();
    });
    for (const event of ["error", "processing_error", "timeout_error"]) {
      consumer.on(event, (error, message) => {
        if (!isLate(error, message)) failures.push(error.message);
      });
    }
    consumer.start();
  }
  await isDone;
  for (const consumer of all) consumer.stop({ abort: true });
  const own = failures.filter((message) => !/not yet|abort/i.test(message));
  assert.deepEqual(own, []);
  assert.equal(failures.filter((message) => message.includes("not yet")).length, 1);
  const again = [...times].filter(([, count]) => count > 1).map(([body]) => body);
  // A batch whose handler fails comes again whole.
  assert.ok(again.includes("m-7") && again.length <= 10, again.join());
  assert.equal(times.get("m-17"), 1);

  // A poll that was cut off keeps no message from others.
  await sqs.sendMessage({ QueueUrl: queueUrl, MessageBody: "afterwards" });
  const [got] = await receive(queueUrl);
  assert.equal(got.Body, "afterwards");
  await sqs.deleteMessage({ QueueUrl: queueUrl, ReceiptHandle: got.ReceiptHandle });
}

async function purge(QueueUrl) {
  await sqs.sendMessageBatch({ QueueUrl, Entries: entries(10) });
  await sqs.purgeQueue({ QueueUrl });
  assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
  await fails(sqs.purgeQueue({ QueueUrl }), PurgeQueueInProgress, 403);
}

async function deadLetters(dead, dying) {
  let found = [];
  for (let at = 0; at < 6 && found.length === 0; at += 1) {
    found = await receive(dead, { WaitTimeSeconds: 20, VisibilityTimeout: 0 });
  }
  const { QueueArn: SourceArn } = await attributesOf(dead, "QueueArn");
  const { QueueArn: diedIn } = await attributesOf(dying, "QueueArn");
  assert.deepEqual(
    found.map((one) => [one.Body, one.Attributes.DeadLetterQueueSourceArn]),
    [["bad", diedIn]],
  );
  const { TaskHandle } = await sqs.startMessageMoveTask({ SourceArn });
  const [back] = await receive(dying, { WaitTimeSeconds: 20 });
  assert.equal(back.Body, "bad");
  await sqs.deleteMessage({ QueueUrl: dying, ReceiptHandle: back.ReceiptHandle });
  let task;
  do {
    [task] = (await sqs.listMessageMoveTasks({ SourceArn })).Results;
  } while (task.Status === "RUNNING");
  assert.deepEqual([task.Status, task.ApproximateNumberOfMessagesMoved], ["COMPLETED", 1]);
  const code = "AWS.SimpleQueueService.UnsupportedOperation";
  const cancelled = sqs.cancelMessageMoveTask({ TaskHandle });
  await cancelled.then(
    () => assert.fail("a task that has ended was cancelled"),
    (error) => assert.ok([code, "UnsupportedOperation"].includes(error.name), error.name),
  );
}

async function wrongKeys(QueueUrl) {
  const accessKeyId = process.env.AWS_ACCESS_KEY_ID;
  const secretAccessKey = process.env.AWS_SECRET_ACCESS_KEY;
  const call = (credentials) =>
    client({ endpoint, credentials }).getQueueAttributes({
      QueueUrl,
      AttributeNames: ["DelaySeconds"],
    });
  const wrong = { accessKeyId, secretAccessKey: "wrong" };
  const unknown = { accessKeyId: "CQAKNONE", secretAccessKey };
  await fails(call(wrong), SQSServiceException, 403, "SignatureDoesNotMatch");
  await fails(call(unknown), SQSServiceException, 403, "InvalidClientTokenId");
  // The SDK learns of a clock that is wrong from the first answer, and signs again.
  const { now } = Date;
  Date.now = () => now() - 3_600_000;
  const found = await call({ accessKeyId, secretAccessKey });
  Date.now = now;
  assert.deepEqual([found.Attributes.DelaySeconds, found.$metadata.attempts], ["0", 2]);

  // A consumer pauses after an error that trying again at once cannot mend.
  const consumer = Consumer.create({
    queueUrl: QueueUrl,
    sqs: client({ endpoint, credentials: unknown }),
    handleMessage: async (message) => message,
  });
  const failure = new Promise((resolve) => consumer.on("error", resolve));
  consumer.start();
  assert.equal((await failure).statusCode, 403);
  consumer.stop({ abort: true });
}

const { url, dead, dying } = await makeQueues();
const parts = { oneMessage, batches, bigMessages, errors, addresses, connections, consumers, purge };
for (const [part, run] of Object.entries(parts)) {
  console.log(part);
  await run(url);
}
console.log("deadLetters");
await deadLetters(dead, dying);
if (isSigned) await wrongKeys(url);
for (const QueueUrl of [url, dying, dead]) {
  await sqs.deleteQueue({ QueueUrl });
  await fails(sqs.purgeQueue({ QueueUrl }), QueueDoesNotExist, 400);
}
sqs.destroy();
