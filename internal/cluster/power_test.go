package cluster

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/kubeapi"
)

// TestStartUpdatesKubeconfig: start corrects the cluster's entries, and keeps the current context. It adds no entry.
func TestStartUpdatesKubeconfig(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	file := c.Kubeconfig[0]
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.NewReplacer(f.API.URL, "https://127.0.0.1:1", "current-context: berth-dev", "current-context: prod").Replace(string(text))
	if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Stop(t.Context(), "dev"), c.Start(t.Context(), "dev", 0)); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(file); err != nil || !strings.Contains(string(text), "server: "+f.API.URL) || !strings.Contains(string(text), "current-context: prod") {
		t.Errorf("%v\n%s", err, text)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Stop(t.Context(), "dev"), c.Start(t.Context(), "dev", 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start added the cluster to the kubeconfig: %v", err)
	}
}

// TestStartWithABrokenKubeconfig: the routes are written before start fails.
func TestStartWithABrokenKubeconfig(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	if err := os.WriteFile(c.Kubeconfig[0], []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Files = map[string]string{}
	err := c.Start(t.Context(), "dev", 0)
	if err == nil || !strings.Contains(err.Error(), "cannot read kubeconfig "+c.Kubeconfig[0]) || len(f.Files) != 3 {
		t.Errorf("%v, files %v", err, f.Files)
	}
}

// TestStartOfSomeNodes: the kubelet of a node that ran all the time does not report an unchanged condition. start waits for
// the nodes that it has started.
func TestStartOfSomeNodes(t *testing.T) {
	f := clustertest.New(t)
	c := create(t, f, twoWorkers)
	if err := f.Stop(t.Context(), "dev-worker"); err != nil {
		t.Fatal(err)
	}
	f.Heartbeats = map[string]time.Time{"dev-control-plane": time.Now().Add(-time.Minute), "dev-worker2": time.Now().Add(-time.Minute)}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil {
		t.Error(err)
	}
	for _, behind := range []time.Duration{time.Hour, -time.Hour} { // the clock of the engine's host
		f.Behind, f.Heartbeats = behind, nil
		if err := errors.Join(f.Stop(t.Context(), "dev-worker"), c.Start(t.Context(), "dev", time.Minute)); err != nil {
			t.Errorf("%s behind: %v", behind, err)
		}
	}
	f.Heartbeats = map[string]time.Time{"dev-worker": time.Now().Add(time.Minute)} // an hour before its start
	if err := errors.Join(f.Stop(t.Context(), "dev-worker"), c.Start(t.Context(), "dev", 10*time.Millisecond)); err == nil || !strings.Contains(err.Error(), "dev-worker (it has reported nothing since its start)") {
		t.Errorf("what it reported before it was stopped: %v", err)
	}
	old := time.Now().Add(-time.Minute)
	err := notReadyError([]string{"a", "b"}, starts{"a": time.Now()}, time.Second, []kubeapi.Node{{Name: "a", Ready: true, Seen: old}, {Name: "b", Ready: true, Seen: old}}, errors.New("late"))
	if !strings.Contains(err.Error(), "as it is: a (it has reported nothing since its start): late") {
		t.Error(err)
	}
}
