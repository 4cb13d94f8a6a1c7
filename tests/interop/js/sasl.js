// One round trip of kafkajs on a listener with SASL_SSL: node sasl.js BOOTSTRAP TOPIC MECHANISM USER PASSWORD AUTHORITY
// Prints the value that came back, or the name of the error.
const { readFileSync } = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, mechanism, username, password, authority] = process.argv.slice(2);
const kafka = new Kafka({
  clientId: "sasl",
  brokers: bootstrap.split(","),
  ssl: { ca: [readFileSync(authority)] },
  sasl: { mechanism, username, password },
  logLevel: logLevel.NOTHING,
  retry: { retries: 2 },
});

async function roundTrip() {
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: [{ value: "from kafkajs" }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: "kafkajs" });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const value = await new Promise((resolve) =>
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }),
  );
  await consumer.disconnect();
  return value;
}

roundTrip().then(
  (value) => console.log(value),
  (error) => console.log(error.name),
);
