// franz-go's producer with its default settings: so many values of so many bytes, given as fast as the client takes them.
//
// usage: franz-producer BOOTSTRAP TOPIC PARTITIONS RECORDS BYTES ROUNDS
//
// Prints one line of JSON a round. Only codec and partitioner are not the client's defaults: values that compress to
// nothing would make no large request, and every partition gets its share.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const produceKey = 0

type round struct {
	Seconds  float64        `json:"seconds"`
	Acked    int            `json:"acked"`
	Errors   map[string]int `json:"errors"`
	Requests int64          `json:"requests"`
	Broken   int64          `json:"broken"`
	Largest  int64          `json:"largest_bytes"`
	Warnings int64          `json:"warnings"`
}

// watch counts the produce requests, the ones whose answer did not come, and the lines that the client logs of faults.
type watch struct{ requests, broken, largest, warnings atomic.Int64 }

func (w *watch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, end kgo.BrokerE2E) {
	if key != produceKey {
		return
	}
	w.requests.Add(1)
	if end.Err() != nil {
		w.broken.Add(1)
	}
	if bytes := int64(end.BytesWritten); bytes > w.largest.Load() {
		w.largest.Store(bytes)
	}
}

func (w *watch) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (w *watch) Log(_ kgo.LogLevel, text string, details ...any) {
	w.warnings.Add(1)
	fmt.Fprintln(os.Stderr, text, details)
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	partitions, records, bytes, rounds := number(os.Args[3]), number(os.Args[4]), number(os.Args[5]), number(os.Args[6])
	watch := &watch{}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.WithHooks(watch),
		kgo.WithLogger(watch),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	value := make([]byte, bytes)
	for range rounds {
		done := produce(client, value, partitions, records)
		done.Requests, done.Broken = watch.requests.Swap(0), watch.broken.Swap(0)
		done.Largest, done.Warnings = watch.largest.Swap(0), watch.warnings.Swap(0)
		if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
			panic(err)
		}
	}
}

func produce(client *kgo.Client, value []byte, partitions, records int) round {
	var waiting sync.WaitGroup
	var mutex sync.Mutex
	done := round{Errors: map[string]int{}}
	began := time.Now()
	for i := range records {
		waiting.Add(1)
		record := &kgo.Record{Value: value, Partition: int32(i % partitions)}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			if err == nil {
				done.Acked++
			} else {
				done.Errors[err.Error()]++
			}
			waiting.Done()
		})
	}
	waiting.Wait()
	done.Seconds = time.Since(began).Seconds()
	return done
}
