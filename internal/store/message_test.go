package store

import (
	"runtime"
	"runtime/debug"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The JSON of a message is made once for several writes, and does not stay in memory.
func TestMessagesDoNotKeepTheirJSON(t *testing.T) {
	m := MessageOf(&runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "web"}})
	// Without a collection in between.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	encodedOnce(t, m)
	runtime.GC()
	runtime.GC()
	if m.encoded.load() != nil {
		t.Error("the JSON is in memory after a collection of garbage")
	}
	if data, err := m.MarshalJSON(); err != nil || len(data) == 0 {
		t.Errorf("after that: %s, %v", data, err)
	}
}

func encodedOnce(t *testing.T, m Message[*runtimeapi.ContainerConfig]) {
	t.Helper()
	first, err := m.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	copied := thing{Name: "a", Config: m}
	again, err := copied.Config.MarshalJSON()
	if err != nil || &first[0] != &again[0] {
		t.Errorf("the JSON was made again: %v", err)
	}
}
