package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/streaming"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// fuzzedImage is the only image of a fuzzed node.
const fuzzedImage = podtest.ImageName

// fuzzedNode is a node with a sandbox and a container in each state. Its engine is in memory. Its
// rules and checks are the real ones.
type fuzzedNode struct {
	parts  *podtest.Parts
	pods   *pod.Service
	server *Server
	dir    string
	// ids of the node's objects, by the words that requests use for them.
	ids map[string]string
}

// checkedEngine is a fake with the native engine's checks of requests.
type checkedEngine struct{ engine.Engine }

func (checkedEngine) CheckSandbox(config *runtimeapi.PodSandboxConfig) error {
	return check.Sandbox(config)
}

func (checkedEngine) CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return check.Container(config, sandbox)
}

func (checkedEngine) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	return check.Resources(field, limits)
}

func newFuzzedNode(f *testing.F) *fuzzedNode {
	f.Helper()
	n := &fuzzedNode{parts: podtest.Fake(), dir: f.TempDir()}
	failed(f, "make the directory of logs", os.Mkdir(n.logs(), 0o700))
	var err error
	n.pods, err = pod.New(f.Context(), pod.Options{
		Engine: checkedEngine{n.parts.Engine}, Images: n.parts.Images, Network: n.parts.Network,
		StateDir: filepath.Join(n.dir, "state"), RootDir: filepath.Join(n.dir, "root"), BootID: "boot",
		Log: slog.New(slog.DiscardHandler), Limits: pod.Limits{Kill: time.Second, Batch: time.Millisecond},
	})
	failed(f, "start the rules", err)
	f.Cleanup(func() {
		if err := n.pods.Close(context.WithoutCancel(f.Context())); err != nil {
			f.Errorf("close the rules: %v", err)
		}
	})
	n.server, err = New(Options{
		Lifecycle: n.pods, Sessions: n.pods, View: n.pods, Events: n.pods, Node: n.pods,
		Images: n.parts.Images, Streams: checkedStreams{f.Context()}, Version: "1",
	})
	failed(f, "make the server", err)
	n.fill(f)
	return n
}

func (n *fuzzedNode) logs() string { return filepath.Join(n.dir, "logs") }

// fill creates the sandbox and its containers.
func (n *fuzzedNode) fill(t testing.TB) {
	t.Helper()
	sandbox, err := n.pods.RunSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "fuzzed", Namespace: "ns", Uid: "u"},
		LogDirectory: n.logs(), Labels: map[string]string{"app": "web"},
	}, "")
	failed(t, "run the sandbox", err)
	n.ids = map[string]string{"sandbox": sandbox}
	for name, command := range map[string][]string{"running": {"sleep"}, "created": {"sleep"}, "exited": {"exit", "0"}} {
		id, err := n.pods.CreateContainer(t.Context(), sandbox, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: fuzzedImage},
			Command: command, LogPath: name + ".log", Labels: map[string]string{"app": "web"},
		})
		failed(t, "create container "+name, err)
		if name != "created" {
			failed(t, "start container "+name, n.pods.StartContainer(t.Context(), id))
		}
		n.ids[name] = id
	}
	podtest.Eventually(t, "the exit is recorded", func() bool {
		status, _, err := n.pods.ContainerStatus(t.Context(), n.ids["exited"], false)
		return err == nil && status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
}

// renew removes everything from the node, checks that nothing is left, and fills it again.
func (n *fuzzedNode) renew(t testing.TB) {
	t.Helper()
	list, err := podtest.Sandboxes(t.Context(), n.pods, nil)
	failed(t, "list sandboxes", err)
	for _, sb := range list {
		failed(t, "stop sandbox", n.pods.StopSandbox(t.Context(), sb.GetId()))
		failed(t, "remove sandbox", n.pods.RemoveSandbox(t.Context(), sb.GetId()))
	}
	podtest.Eventually(t, "nothing is left", func() bool { return len(n.left(t)) == 0 })
	logs, err := os.ReadDir(n.logs())
	failed(t, "list logs", err)
	for _, log := range logs { // logs belong to the client
		failed(t, "remove log", os.RemoveAll(filepath.Join(n.logs(), log.Name())))
	}
	n.fill(t)
}

// left lists what the engine, the network and the state contain.
func (n *fuzzedNode) left(t testing.TB) []string {
	t.Helper()
	actual, err := n.parts.Engine.List(t.Context())
	failed(t, "list what the engine has", err)
	left := n.parts.Left()
	for _, a := range actual {
		left = append(left, fmt.Sprintf("%s %s %s", a.Kind, a.ID, a.State))
	}
	for _, job := range n.pods.Jobs() {
		left = append(left, "job "+job.Key)
	}
	for _, dir := range []string{"sandboxes", "containers"} {
		records, err := os.ReadDir(filepath.Join(n.dir, "state", dir))
		failed(t, "list records", err)
		for _, record := range records {
			left = append(left, "record "+record.Name())
		}
	}
	slices.Sort(left)
	return left
}

// settled returns all records of the node once no job runs. Tombstones are excluded, because they
// are written later.
func (n *fuzzedNode) settled(t testing.TB) string {
	t.Helper()
	podtest.Eventually(t, "the jobs end", func() bool { return len(n.pods.Jobs()) == 0 })
	text := strings.Builder{}
	text.WriteString(strings.Join(n.left(t), "\n"))
	n.walk(t, func(path string, data []byte) {
		if !strings.Contains(path, "tombstones") {
			fmt.Fprintf(&text, "\n%s: %s", path, data)
		}
	})
	return text.String()
}

// walk visits all files of the node, except tombstones and the reserve.
func (n *fuzzedNode) walk(t testing.TB, visit func(path string, data []byte)) {
	t.Helper()
	failed(t, "walk the node's files", filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.Contains(path, "tombstones") || strings.HasSuffix(path, ".reserve") {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			visit(path, data)
		}
		return err
	}))
}

// checkWritten checks the names and contents of files.
func (n *fuzzedNode) checkWritten(t testing.TB) {
	t.Helper()
	n.walk(t, func(path string, data []byte) {
		if strings.ContainsFunc(path, unicode.IsControl) {
			t.Errorf("a file is named %q", path)
		}
		if strings.ContainsRune(string(data), 0) || strings.Contains(string(data), `\u0000`) {
			t.Errorf("%s holds a NUL: %q", path, data)
		}
	})
}

// checkTaken checks the strings of an accepted request. Each becomes part of a path, a line or a C
// string.
func checkTaken(t *testing.T, req proto.Message) {
	t.Helper()
	switch req := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		config := req.GetConfig()
		meta, dns := config.GetMetadata(), config.GetDnsConfig()
		words := []string{meta.GetName(), meta.GetNamespace(), meta.GetUid(), config.GetHostname()}
		words = slices.Concat(words, dns.GetServers(), dns.GetSearches(), dns.GetOptions())
		for _, word := range words {
			if strings.ContainsFunc(word, unicode.IsControl) || strings.ContainsRune(word, '\n') {
				t.Errorf("a sandbox has %q among its words", word)
			}
		}
	case *runtimeapi.CreateContainerRequest:
		for _, env := range req.GetConfig().GetEnvs() {
			if strings.ContainsRune(string(env.GetValue()), 0) || strings.ContainsAny(env.GetKey(), "=\n\x00") {
				t.Errorf("a container has the variable %q=%q", env.GetKey(), env.GetValue())
			}
		}
	}
}

// checkedStreams uses a separate streaming server for each URL, because one server has a limited
// number of pending URLs.
type checkedStreams struct {
	ctx context.Context //nolint:containedctx // the fuzz target's
}

func (s checkedStreams) ask(url func(*streaming.Server) (string, error)) (string, error) {
	server, err := streaming.Listen(s.ctx, streaming.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	answer, err := url(server)
	return answer, errors.Join(err, server.Close())
}

func (s checkedStreams) ExecURL(req *runtimeapi.ExecRequest) (string, error) {
	return s.ask(func(server *streaming.Server) (string, error) { return server.ExecURL(req) })
}

func (s checkedStreams) AttachURL(req *runtimeapi.AttachRequest) (string, error) {
	return s.ask(func(server *streaming.Server) (string, error) { return server.AttachURL(req) })
}

func (s checkedStreams) PortForwardURL(req *runtimeapi.PortForwardRequest) (string, error) {
	return s.ask(func(server *streaming.Server) (string, error) { return server.PortForwardURL(req) })
}
