package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// TestResultsOfAnIncompleteADD: the next process has the results of each network for DEL, and that of a complete ADD. It
// removes those of sandboxes that have no attachment.
func TestResultsOfAnIncompleteADD(t *testing.T) {
	cfg := Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), StateDir: t.TempDir(), MaxNetworks: 1}
	open := func() *Network {
		t.Helper()
		n, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	n := open()
	recordOf := func(id string) *record {
		return &record{Attachment: network.Attachment{SandboxID: id}, Conf: []byte(`{}`)}
	}
	for _, id := range []string{"incomplete", "complete"} {
		if err := n.records.Create(id, recordOf(id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"incomplete", "complete", "without a record"} {
		kept := keeper{n: n, sandbox: id}
		for i, result := range []string{`{"a":1}`, `{"b":2}`} {
			if err := kept.of(t.Context(), i).Value(resultKey{}).(func([]byte) error)([]byte(result)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.keepResult("complete", func(a *added) { a.Partial, a.Result = nil, &network.Result{CNI: []byte(`{"c":3}`)} }); err != nil {
		t.Fatal(err)
	}
	n = open()
	partial := n.partialOf(recordOf("incomplete"))
	if string(partial[0]) != `{"a":1}` || string(partial[1]) != `{"b":2}` || n.resultOf(recordOf("incomplete")) != nil {
		t.Errorf("%s, want both results", fmt.Sprint(partial))
	}
	if result := n.resultOf(recordOf("complete")); result == nil || string(result.CNI) != `{"c":3}` || n.partialOf(recordOf("complete")) != nil {
		t.Errorf("the result of a complete ADD: %v", result)
	}
	if ids := n.results.IDs(); len(ids) != 2 {
		t.Errorf("there are results of %q", ids)
	}
}

// TestResultsInTheRecordOfAnEarlierVersion: the DEL of an ADD that an earlier version began has its results.
func TestResultsInTheRecordOfAnEarlierVersion(t *testing.T) {
	n, err := New(t.Context(), Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), MaxNetworks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	partial := n.partialOf(&record{Partial: map[int]json.RawMessage{1: json.RawMessage(`{"c":3}`)}})
	if string(partial[1]) != `{"c":3}` {
		t.Errorf("%s", fmt.Sprint(partial))
	}
}

// TestNameThatCNIRefuses: libcni runs no plugin of a network with such a name, so that its DEL has nothing to do. New pods
// do not get such a configuration.
func TestNameThatCNIRefuses(t *testing.T) {
	const conf = `{"cniVersion":"1.0.0","name":"my net","plugins":[{"type":"nosuch"}]}`
	cfg := Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), MaxNetworks: 1}
	if err := os.WriteFile(filepath.Join(cfg.ConfDir, "10.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	att := network.Attachment{SandboxID: "sandbox"}
	if err := n.records.Create("sandbox", &record{Attachment: att, Conf: []byte(conf)}); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), &att); err != nil || len(n.records.IDs()) != 0 {
		t.Errorf("%v, records %v", err, n.records.IDs())
	}
	if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), `"my net"`) {
		t.Errorf("%v, want kind Unavailable with the name", err)
	}
}
