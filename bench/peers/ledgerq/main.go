// Times LedgerQ for the benchmark: ledgerq-bench single|batch FOLDER MESSAGES SIZE
//
// MESSAGES is a file of messages of SIZE bytes each, one after the other. Prints how many messages
// were enqueued and the seconds that took. Opening and closing the queue are not timed.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/1mb-dev/ledgerq/pkg/ledgerq"
)

const batchMessages = 1000

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: ledgerq-bench single|batch FOLDER MESSAGES SIZE")
	}
	mode, folder := args[0], args[1]
	messages, err := readMessages(args[2], args[3])
	if err != nil {
		return err
	}

	options := ledgerq.DefaultOptions(folder)
	options.AutoSync = false
	options.SyncInterval = time.Second
	options.MaxSegmentSize = 64 << 20
	queue, err := ledgerq.Open(folder, options)
	if err != nil {
		return err
	}
	defer queue.Close()

	enqueue := enqueueEach
	if mode == "batch" {
		enqueue = enqueueBatches
	}
	began := time.Now()
	if err := enqueue(queue, messages); err != nil {
		return err
	}
	fmt.Printf("%d %.9f\n", len(messages), time.Since(began).Seconds())
	return nil
}

func enqueueEach(queue *ledgerq.Queue, messages [][]byte) error {
	for _, message := range messages {
		if _, err := queue.Enqueue(message); err != nil {
			return err
		}
	}
	return nil
}

func enqueueBatches(queue *ledgerq.Queue, messages [][]byte) error {
	for start := 0; start < len(messages); start += batchMessages {
		end := min(start+batchMessages, len(messages))
		if _, err := queue.EnqueueBatch(messages[start:end]); err != nil {
			return err
		}
	}
	return nil
}

func readMessages(path, size string) ([][]byte, error) {
	messageBytes, err := strconv.Atoi(size)
	if err != nil || messageBytes < 1 {
		return nil, fmt.Errorf("%q is no size of a message", size)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	messages := make([][]byte, 0, len(content)/messageBytes)
	for ; len(content) >= messageBytes; content = content[messageBytes:] {
		messages = append(messages, content[:messageBytes])
	}
	return messages, nil
}
