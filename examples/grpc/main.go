// Publishes a message over gRPC, receives it under a lease, and acks it.
//
//	go run . localhost:9090 /path/to/penstock/server/grpc/descriptors.binpb
//
// It makes its messages of the compiled descriptors, so that it needs no generated code; a program
// of yours would be generated from penstock.proto.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: go run . ADDRESS DESCRIPTORS")
	}
	files := descriptors(os.Args[2])
	channel, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	call := func(method string, asked, answered protoreflect.Name, fields string) protoreflect.Message {
		request, response := message(files, asked), message(files, answered)
		check(protojson.Unmarshal([]byte(fields), request))
		check(channel.Invoke(ctx, "/penstock.v1."+method, request, response))
		return response.ProtoReflect()
	}

	call("Api/Ask", "AskRequest", "AskResponse",
		`{"call": "create_topic", "fields": "{\"topic\": \"orders\", \"exist_ok\": true}"}`)
	call("Messages/Publish", "PublishRequest", "PublishResponse",
		`{"topic": "orders", "list": {"messages": [{"value": "MTIgYXBwbGVz"}]}}`) // base64
	received := get(call("Queue/Receive", "ReceiveRequest", "ReceiveResponse",
		`{"topic": "orders", "group": "billing", "wait": "5s"}`), "messages").List()
	for n := 0; n < received.Len(); n++ {
		each := received.Get(n).Message()
		receipt := get(each, "receipt").String()
		fmt.Printf("%s: %s\n", receipt[:8], get(get(each, "message").Message(), "value").Bytes())
		call("Queue/Settle", "SettleRequest", "SettleResponse", fmt.Sprintf(
			`{"topic": "orders", "group": "billing", "verb": "VERB_ACK", "receipts": [%q]}`, receipt))
	}
}

func descriptors(path string) *protoregistry.Files {
	data, err := os.ReadFile(path)
	check(err)
	var set descriptorpb.FileDescriptorSet
	check(proto.Unmarshal(data, &set))
	files, err := protodesc.NewFiles(&set)
	check(err)
	return files
}

func message(files *protoregistry.Files, name protoreflect.Name) proto.Message {
	found, err := files.FindDescriptorByName("penstock.v1." + protoreflect.FullName(name))
	check(err)
	return dynamicpb.NewMessage(found.(protoreflect.MessageDescriptor))
}

func get(of protoreflect.Message, field protoreflect.Name) protoreflect.Value {
	return of.Get(of.Descriptor().Fields().ByName(field))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
