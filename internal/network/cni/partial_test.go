package cni

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// TestPublishedRecordsDoNotChange: the result of one network's ADD goes into a new record. Others read the former one
// without a lock.
func TestPublishedRecordsDoNotChange(t *testing.T) {
	n, err := New(t.Context(), Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), MaxNetworks: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.records.Create("pod", &record{Attachment: network.Attachment{SandboxID: "pod"}}); err != nil {
		t.Fatal(err)
	}
	keep := func(i int, result string) {
		t.Helper()
		if err := n.keepResults(t.Context(), "pod", i).Value(resultKey{}).(func([]byte) error)([]byte(result)); err != nil {
			t.Fatal(err)
		}
	}
	keep(0, `{"a":1}`)
	before, err := n.records.Get("pod")
	if err != nil {
		t.Fatal(err)
	}
	keep(1, `{"b":2}`)
	if len(before.Partial) != 1 {
		t.Errorf("a record that was read before has now %v", before.Partial)
	}
	after, err := n.records.Get("pod")
	if err != nil || len(after.Partial) != 2 || !json.Valid(after.Partial[1]) {
		t.Errorf("%v, %v", after.Partial, err)
	}
}
