package cri

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStreamedListsSendEachItemOnce: a list that is larger than any message arrives completely and
// in order. No message is empty or large.
func TestStreamedListsSendEachItemOnce(t *testing.T) {
	const count, size = 50, 100 << 10
	pods := &fakePods{}
	for i := range count {
		pods.list = append(pods.list, &runtimeapi.PodSandbox{Id: fmt.Sprint(i), Annotations: map[string]string{"a": strings.Repeat("x", size)}})
	}
	pods.list = append(pods.list, &runtimeapi.PodSandbox{Id: fmt.Sprint(count), Annotations: map[string]string{"a": strings.Repeat("x", 2*maxStreamed)}})
	c := runtimeapi.NewRuntimeServiceClient(client(t, pods, noImages(), nil))
	stream, err := c.StreamPodSandboxes(t.Context(), &runtimeapi.StreamPodSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got, messages int
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		messages++
		if n := len(resp.PodSandboxes); n == 0 || n > maxStreamed/size {
			t.Errorf("message of %d items", n)
		}
		for _, item := range resp.PodSandboxes {
			if item.Id != fmt.Sprint(got) {
				t.Fatalf("item %d has the id %s", got, item.Id)
			}
			got++
		}
	}
	if got != count+1 || messages != 6 {
		t.Errorf("%d items in %d messages, want %d in 6", got, messages, count+1)
	}
}

func TestStreamOfAnEmptyListEnds(t *testing.T) {
	c := runtimeapi.NewRuntimeServiceClient(client(t, &fakePods{}, noImages(), nil))
	stream, err := c.StreamPodSandboxes(t.Context(), &runtimeapi.StreamPodSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v; want the end", resp, err)
	}
}
