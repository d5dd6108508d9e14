package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// TestResultsOfAnIncompleteADD: the next process has the results of each network for DEL, and removes those that no
// DEL needs.
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
	for id, result := range map[string]*network.Result{"incomplete": nil, "complete": {}} {
		if err := n.records.Create(id, &record{Attachment: network.Attachment{SandboxID: id}, Conf: []byte(`{}`), Result: result}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"incomplete", "complete", "without a record"} {
		p := n.partialOf(id)
		for i, result := range []string{`{"a":1}`, `{"b":2}`} {
			if err := p.keepResults(t.Context(), i).Value(resultKey{}).(func([]byte) error)([]byte(result)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n = open()
	rec, err := n.records.Get("incomplete")
	if err != nil {
		t.Fatal(err)
	}
	p := n.partialOf("incomplete")
	if err := p.read(rec); err != nil || string(p.results[0]) != `{"a":1}` || string(p.results[1]) != `{"b":2}` {
		t.Errorf("%s, %v", fmt.Sprint(p.results), err)
	}
	for _, id := range []string{"complete", "without a record"} {
		if _, err := os.Stat(n.partialOf(id).file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the results of %q: %v, want none", id, err)
		}
	}
}

// TestResultsInTheRecordOfAnEarlierVersion: the DEL of an ADD that an earlier version began has its results.
func TestResultsInTheRecordOfAnEarlierVersion(t *testing.T) {
	n, err := New(t.Context(), Config{ConfDir: t.TempDir(), RootDir: t.TempDir(), MaxNetworks: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	rec := &record{}
	rec.Partial = map[int]json.RawMessage{1: json.RawMessage(`{"c":3}`)}
	p := n.partialOf("sandbox")
	if err := p.read(rec); err != nil || string(p.results[1]) != `{"c":3}` {
		t.Errorf("%s, %v", fmt.Sprint(p.results), err)
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
