// kafkajs as one of the interop tests' clients: `node client.js COMMAND ARGUMENT...`, JSON on both sides.
//
// A record is {key, value, headers}: bytes as Base64 or null, headers as pairs in the order in which kafkajs has them.

'use strict'

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }

const fromText = (text) => (text === null ? null : Buffer.from(text, 'base64'))
const toText = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))
const say = (event) => process.stdout.write(JSON.stringify(event) + '\n')

function cluster(bootstrap) {
  return new Kafka({ clientId: 'tailrace-interop', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })
}

async function standardInput() {
  const chunks = []
  for await (const chunk of process.stdin) chunks.push(chunk)
  return Buffer.concat(chunks).toString('utf8')
}

function outgoing({ key, value, headers }) {
  const grouped = {}
  for (const [name, bytes] of headers) (grouped[name] ||= []).push(fromText(bytes))
  return { key: fromText(key), value: fromText(value), headers: grouped }
}

function incoming({ key, value, headers }) {
  const pairs = Object.entries(headers || {}).flatMap(([name, bytes]) =>
    [bytes].flat().map((each) => [name, toText(each)])
  )
  return { key: toText(key), value: toText(value), headers: pairs }
}

async function produce(bootstrap, topic, codec) {
  const messages = JSON.parse(await standardInput()).map((message) => ({ ...outgoing(message), partition: 0 }))
  const producer = cluster(bootstrap).producer({ idempotent: true })
  await producer.connect()
  await producer.send({ topic, messages, acks: -1, compression: CODECS[codec] })
  await producer.disconnect()
}

// Reads until standard input ends, as a member of the group, and tells what it is given and what it reads.
async function join(bootstrap, topic, groupId) {
  const consumer = cluster(bootstrap).consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 500 })
  const told = consumer.events
  consumer.on(told.GROUP_JOIN, ({ payload }) => say({ assigned: payload.memberAssignment[topic] || [] }))
  consumer.on(told.REBALANCING, () => say({ assigned: [] }))
  // One that begins again by itself has failed to reach its coordinator for a while: a node was killed.
  consumer.on(told.CRASH, ({ payload }) => payload.restart || say({ crash: String(payload.error) }))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => say({ record: incoming(message) }) })
  await standardInput()
  await consumer.disconnect()
}

// Reads new records as a consumer of this rack until standard input ends, and tells their values.
async function tail(bootstrap, topic, groupId, rackId) {
  // kafkajs fetches no more from a replica whose connection has closed, nor from another until its metadata is old. A
  // broker that refuses connections is tried again `retries` times; then the consumer joins its group anew, and waits for
  // the end of its own last session there.
  const retry = { initialRetryTime: 100, retries: 2 }
  const kafka = new Kafka({ clientId: 'tailrace-interop', brokers: bootstrap.split(','), logLevel: logLevel.ERROR, retry })
  const consumer = kafka.consumer({
    groupId,
    rackId,
    metadataMaxAge: 5000,
    sessionTimeout: 6000,
    rebalanceTimeout: 6000,
    heartbeatInterval: 500,
    retry: { ...retry, restartOnFailure: async () => true },
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: false })
  await consumer.run({ eachMessage: async ({ message }) => say({ value: message.value.toString() }) })
  await standardInput()
  await consumer.disconnect()
}

async function consume(bootstrap, topic, count) {
  const groupId = `read-once-${process.pid}-${Date.now()}`
  const consumer = cluster(bootstrap).consumer({ groupId })
  const records = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      eachMessage: async ({ message }) => {
        records.push(incoming(message))
        if (records.length >= Number(count)) resolve()
      },
    })
  })
  await consumer.disconnect()
  say(records.slice(0, Number(count)))
}

// Sends pairs of a record with an old time of its own and one without a time, each pair at once; tells the time before.
async function producePairs(bootstrap, topic, count, age) {
  const producer = cluster(bootstrap).producer()
  await producer.connect()
  const now = Date.now()
  for (let sent = 0; sent < Number(count); sent++) {
    const old = { value: Buffer.alloc(100), partition: 0, timestamp: String(now - Number(age)) }
    await producer.send({ topic, messages: [old, { value: Buffer.alloc(20000), partition: 0 }] })
  }
  await producer.disconnect()
  say(now)
}

// One answer per step, under the step's name.
async function administer(bootstrap, topic) {
  const kafka = cluster(bootstrap)
  const admin = kafka.admin()
  const producer = kafka.producer()
  const groupId = `group-of-${topic}`
  const answers = {}
  await admin.connect()
  await producer.connect()
  answers.cluster = await admin.describeCluster()
  const settings = [{ name: 'retention.ms', value: '5000' }]
  answers.created = await admin.createTopics({ topics: [{ topic, numPartitions: 1, configEntries: settings }] })
  answers.createdAgain = await admin.createTopics({ topics: [{ topic }] })
  answers.listed = (await admin.listTopics()).includes(topic)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] })
  answers.metadata = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'segment.ms', value: '9000' }] }],
  })
  const described = await admin.describeConfigs({ includeSynonyms: true, resources: [resource] })
  answers.settings = described.resources[0].configEntries.filter((entry) => entry.configSource === 1)
  const messages = [0, 1, 2].map((number) => ({ value: String(number), partition: 0, timestamp: String(1000 + number) }))
  await producer.send({ topic, messages })
  answers.offsets = await admin.fetchTopicOffsets(topic)
  answers.offsetsAtTime = await admin.fetchTopicOffsetsByTimestamp(topic, 1001)
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
  answers.offsetsAfterDeletion = await admin.fetchTopicOffsets(topic)
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '2' }] })
  answers.committed = await admin.fetchOffsets({ groupId, topics: [topic] })
  answers.group = (await admin.describeGroups([groupId])).groups[0].state
  answers.groupListed = (await admin.listGroups()).groups.some((group) => group.groupId === groupId)
  answers.groupDeleted = await admin.deleteGroups([groupId])
  await admin.deleteTopics({ topics: [topic] })
  answers.listedAfterDeletion = (await admin.listTopics()).includes(topic)
  await producer.disconnect()
  await admin.disconnect()
  say(answers)
}

const COMMANDS = { produce, producePairs, consume, join, tail, administer }
const [command, ...given] = process.argv.slice(2)
COMMANDS[command](...given).catch((fault) => {
  process.stderr.write(`${fault.stack}\n`)
  process.exitCode = 1
})
