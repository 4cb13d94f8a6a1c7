// A program of the ledger for kafkajs: `node program.js PLAN`, with the plan, the diary and the records of program.py.
//
// kafkajs has no consumer without a group, and tries no end of a transaction again: an error there ends this program.

'use strict'

const fs = require('fs')
const path = require('path')

// kafkajs 2.2.4 takes the list of aborted transactions for one in the order of their first offsets, and looks at one of
// them for each record: where aborted transactions interleave it shows records of theirs, of Apache Kafka's too.
const filter = path.join(path.dirname(require.resolve('kafkajs')), 'src/consumer/filterAbortedMessages.js')
require(filter)
require.cache[filter].exports = withoutAborted
const { Kafka, logLevel } = require('kafkajs')

const plan = JSON.parse(process.argv[2])
const { END, ABORT_EVERY, OF_ONE_COPY, SIGHT } = JSON.parse(process.argv[3])
const kafka = new Kafka({
  clientId: `ledger-${plan.client}`,
  brokers: plan.servers.split(','),
  logLevel: logLevel.NOTHING,
  connectionTimeout: 3000,
  requestTimeout: 15000,
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 20 },
})
const file = fs.openSync(plan.output, 'a')
const now = () => Number(process.hrtime.bigint())
const write = (...facts) => fs.writeSync(file, facts.map((one) => JSON.stringify(one) + '\n').join(''))
const note = (op, facts = {}) => write({ op, at: now(), ...facts })
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

function withoutAborted({ messages, abortedTransactions }) {
  const later = [...(abortedTransactions || [])].sort((one, two) => Number(one.firstOffset) - Number(two.firstOffset))
  const open = new Set()
  return messages.filter(({ offset, key, isControlRecord, batchContext: { producerId, inTransaction } }) => {
    while (later.length && Number(later[0].firstOffset) <= Number(offset)) open.add(later.shift().producerId)
    if (isControlRecord && key.readInt16BE(2) === 0) open.delete(producerId)
    return !(inTransaction && !isControlRecord && open.has(producerId))
  })
}

function fail(fault) {
  note('error', { fatal: true, why: `${fault.name} ${fault.type || ''}: ${fault.message}` })
  process.stderr.write(`${fault.stack}\n`)
  process.exit(1)
}

function consumerOf(groupId) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 3000, rebalanceTimeout: 3000, heartbeatInterval: 500, maxWaitTimeInMs: 200 })
  consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || fail(payload.error))
  return consumer
}

// The records that the consumer has brought and the transactions have not taken yet.
const inputs = []
let nextInput = -1
let seen = []

function take({ batch }) {
  if (batch.topic !== plan.source) {
    seen[batch.partition] = [...(seen[batch.partition] || []), ...batch.messages].slice(-SIGHT)
    return
  }
  for (const message of batch.messages) {
    const offset = Number(message.offset)
    if (offset < nextInput) continue // the group has begun again at its committed offset
    inputs.push({ offset })
    nextInput = offset + 1
  }
}

async function copy(transaction, name, records) {
  for (const [index, { offset }] of records.entries()) {
    const fields = { t: name, i: index, of: records.length, copied: [plan.client, offset] }
    await send(transaction, 'copies', offset % plan.partitions.copies, fields)
  }
  const end = String(records.at(-1).offset + 1)
  const topics = [{ topic: plan.source, partitions: [{ partition: 0, offset: end }] }]
  await transaction.sendOffsets({ consumerGroupId: plan.group, topics })
}

async function transfer(transaction, name, number) {
  const count = plan.partitions.accounts
  const payer = number % count
  const payee = (payer + 1 + (Math.floor(number / count) % (count - 1))) % count
  const amount = (number % 97) + 2
  await send(transaction, 'accounts', payer, { t: name, i: 0, of: 3, amount: -amount })
  await sleep(20)
  const read = seen
  seen = []
  const at = now()
  const saw = read.flatMap((messages, partition) =>
    messages.map(({ offset, value }) => [partition, Number(offset), JSON.parse(value.toString()).t])
  )
  await send(transaction, 'accounts', payee, { t: name, i: 1, of: 3, amount: amount - 1, at, saw })
  await send(transaction, 'accounts', payer, { t: name, i: 2, of: 3, amount: 1 })
}

async function send(transaction, topic, partition, fields) {
  await transaction.send({ topic, messages: [{ partition, value: JSON.stringify(fields) }] })
}

async function transact(producer, begun, number) {
  const name = `${plan.client}-${plan.life}-${number}`
  const records = number % 2 ? inputs.splice(0, OF_ONE_COPY) : []
  let commits = number % ABORT_EVERY !== 0
  let transaction = begun
  note('began', { name, number, kind: records.length ? 'copy' : 'transfer' })
  try {
    transaction = transaction || (await producer.transaction())
    await (records.length ? copy(transaction, name, records) : transfer(transaction, name, number))
  } catch (fault) {
    note('error', { name, fatal: false, why: `${fault.name} ${fault.type || ''}: ${fault.message}` })
    commits = false
  }
  if (commits) {
    note('commits', { name })
    await transaction.commit()
  } else {
    inputs.unshift(...records)
    if (transaction) await transaction.abort()
  }
  note('ended', { name, outcome: commits ? 'committed' : 'aborted' })
}

async function work(isOver) {
  note('alive')
  const { transactionalId, transactionTimeout } = {
    transactionalId: plan.transactional_id,
    transactionTimeout: plan.transaction_timeout_ms,
  }
  const producer = kafka.producer({ transactionalId, transactionTimeout, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  let begun = await producer.transaction() // fences the program before, whose offsets are committed or not from here on
  const consumer = consumerOf(plan.group)
  consumer.on(consumer.events.GROUP_JOIN, () => (seen = [])) // it goes on at the end then, and may have skipped some
  await consumer.connect()
  await consumer.subscribe({ topic: plan.source, fromBeginning: true })
  await consumer.subscribe({ topic: 'accounts', fromBeginning: false })
  await consumer.run({ autoCommit: false, eachBatch: async (given) => take(given) })
  note('ready')
  for (let number = 1; !isOver(); number++) {
    await transact(producer, begun, number)
    begun = undefined
    await sleep(plan.pause_ms)
  }
  note('over')
}

async function read() {
  const consumer = consumerOf(`reads-the-ledger-${process.pid}-${Date.now()}`)
  const left = new Set(Object.entries(plan.partitions).flatMap(([topic, count]) => [...Array(count).keys()].map((number) => `${topic}-${number}`)))
  const next = {}
  await consumer.connect()
  for (const topic of Object.keys(plan.partitions)) await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve) => {
    consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch }) => {
        const place = `${batch.topic}-${batch.partition}`
        // Without committed offsets the group begins at 0 again whenever it is joined anew.
        const fresh = batch.messages.filter(({ offset }) => Number(offset) >= (next[place] || 0))
        write(...fresh.map(({ offset, value }) => [batch.topic, batch.partition, Number(offset), value.toString()]))
        if (fresh.length) next[place] = Number(fresh.at(-1).offset) + 1
        if (fresh.some(({ value }) => value.toString() === END)) left.delete(place)
        if (!left.size) resolve()
      },
    })
  })
}

let isOver = false
process.stdin.resume()
process.stdin.on('end', () => (isOver = true))
process.on('unhandledRejection', fail)
const done = plan.role === 'read' ? read() : work(() => isOver)
done.then(() => process.exit(0), fail)
