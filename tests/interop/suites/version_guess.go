// Prints which release of Kafka a broker seems to be, by the APIs that it announces. Usage: version-guess ADDRESS
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request := kmsg.NewPtrApiVersionsRequest()
	request.ClientSoftwareName, request.ClientSoftwareVersion = "version-guess", "1"
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		panic(err)
	}
	fmt.Println(kversion.FromApiVersionsResponse(answer).VersionGuess())
}
