// sarama's synchronous producer: three records, each in a batch of its own, to partition 0 of a topic.
//
// sarama_producer ADDRESS TOPIC
package main

import (
	"fmt"
	"os"

	"github.com/IBM/sarama"
)

func main() {
	config := sarama.NewConfig()
	config.Version = sarama.V2_1_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer([]string{os.Args[1]}, config)
	if err != nil {
		panic(err)
	}
	defer producer.Close()
	for range 3 {
		message := &sarama.ProducerMessage{Topic: os.Args[2], Value: sarama.StringEncoder("value")}
		_, offset, err := producer.SendMessage(message)
		if err != nil {
			panic(err)
		}
		fmt.Println(offset)
	}
}
