//go:build integration && e2e

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// pair is a pod of two containers, a and b, that count. Its CRIU does what a mode says in the second dump of a call.
type pair struct {
	*harness.Berth
	criu, config string
	sandbox      *runtimeapi.PodSandboxConfig
	pod          string
	ids          []string
	mode, first  string
}

// The modes of a pair.
const (
	// slowly: the second container is stopped a second after the first one.
	slowly = "sleep 1"
	// unwritable: it is not written.
	unwritable = "sleep 0.5; echo '(00.1) Error (criu/x.c:1): refused' > dump.log; exit 1"
	// lately: it is to be stopped when the time of a call is over.
	lately = "sleep 2.3"
	// hanging: it is never stopped.
	hanging = "exec sleep 600"
)

// withPair starts a berth whose CRIU has modes.
func withPair(t *testing.T) *pair {
	t.Helper()
	criu, runc, dir := require.CRIU(t), require.Binary(t, "runc"), t.TempDir()
	p := &pair{criu: filepath.Join(dir, "criu"), mode: filepath.Join(dir, "mode"), first: filepath.Join(dir, "first")}
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = dump ] && [ -e %[1]s ]; then mkdir %[2]s 2> /dev/null || . %[1]s; fi\nexec %[3]s \"$@\"\n", p.mode, p.first, criu)
	if err := os.WriteFile(p.criu, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p.config = fmt.Sprintf("[checkpoint]\nenabled = true\ncriu = %q\nruntime = %q\n", p.criu, runc)
	p.Berth = newFields(t, harness.Options{Config: p.config}, nil).Berth
	p.NeedsPart(t, harness.Supervisors)
	return p
}

func (p *pair) set(t *testing.T, mode string) {
	t.Helper()
	if err := os.RemoveAll(p.first); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.mode, []byte(mode+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// configs are the requests of the two containers.
func (p *pair) configs() []*runtimeapi.ContainerConfig {
	return []*runtimeapi.ContainerConfig{hidden(p.Container("a", counting)), hidden(p.Container("b", counting))}
}

func (p *pair) run() {
	p.sandbox = p.Sandbox("pair")
	p.pod = p.RunSandbox(p.sandbox)
	for _, config := range p.configs() {
		p.ids = append(p.ids, p.Create(p.pod, config, p.sandbox))
	}
	for _, id := range p.ids {
		p.StartContainer(id)
	}
	p.goesOn("a start")
}

func (p *pair) log(name string) string {
	return filepath.Join(p.Logs, "pair", name, "0.log")
}

func (p *pair) lines() (a, b int) {
	first, _ := harness.LogLines(p.log("a"))
	second, _ := harness.LogLines(p.log("b"))
	return len(first), len(second)
}

// goesOn waits until both containers count.
func (p *pair) goesOn(after string) {
	p.T.Helper()
	a, b := p.lines()
	p.Await("both containers go on after "+after, func() bool { x, y := p.lines(); return x > a+3 && y > b+3 })
}

func (p *pair) checkpoint(ctx context.Context, dir string) error {
	_, err := p.Runtime.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: p.pod, OutputPath: dir, ContainerIds: p.ids})
	return err
}

// standstill is the longest time between two lines of a log: from the one to the other.
func standstill(t *testing.T, log string) (from, to time.Time) {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for line := range strings.Lines(string(data)) {
		stamp, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatal(err)
		}
		if !last.IsZero() && at.Sub(last) > to.Sub(from) {
			from, to = last, at
		}
		last = at
	}
	return from, to
}

func isEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestCheckpointPod: both containers are stopped before one of them is written, and go on after both are. When one
// cannot be written, time is over, or berth is killed, both go on, and nothing is left.
func TestCheckpointPod(t *testing.T) {
	p := withPair(t)
	p.run()
	defer func() { p.RemovePod(p.pod) }()
	t.Run("one moment", func(t *testing.T) {
		p.set(t, slowly)
		dir := t.TempDir()
		if err := p.checkpoint(p.Ctx(), dir); err != nil {
			t.Fatal(err)
		}
		p.goesOn("a checkpoint")
		a0, a1 := standstill(t, p.log("a"))
		b0, b1 := standstill(t, p.log("b"))
		if a1.Before(b0) || b1.Before(a0) || a1.Sub(a0) < 800*time.Millisecond && b1.Sub(b0) < 800*time.Millisecond {
			t.Errorf("a stood still from %v to %v, b from %v to %v", a0, a1, b0, b1)
		}
		for _, name := range []string{"pod.json", "0.tar", "1.tar"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
			t.Errorf("the directory: %v, %v", left, err)
		}
		checkRefusal(t, p.checkpoint(p.Ctx(), dir), codes.InvalidArgument, []string{"output_path", "is not empty"})
	})
	t.Run("one cannot be written", func(t *testing.T) {
		p.set(t, unwritable)
		dir := t.TempDir()
		err := p.checkpoint(p.Ctx(), dir)
		checkRefusal(t, err, codes.FailedPrecondition, []string{"cannot checkpoint sandbox", p.pod, "cannot checkpoint container", "refused"})
		isEmpty(t, dir)
		p.goesOn("a failure")
	})
	t.Run("the deadline", func(t *testing.T) {
		p.set(t, lately)
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		checkRefusal(t, p.checkpoint(ctx, dir), codes.DeadlineExceeded, nil)
		isEmpty(t, dir)
		p.goesOn("the deadline")
	})
	t.Run("berth is killed", func(t *testing.T) {
		p.set(t, hanging)
		dir := t.TempDir()
		done := make(chan error, 1)
		go func() { done <- p.checkpoint(p.Ctx(), dir) }()
		stopped := func() bool {
			a, b := p.lines()
			time.Sleep(300 * time.Millisecond)
			x, y := p.lines()
			return a == x || b == y
		}
		p.Await("the first container to be stopped", stopped)
		p.KillDaemon()
		if err := <-done; err == nil {
			t.Error("a checkpoint was written")
		}
		p.goesOn("a kill, without a daemon")
		isEmpty(t, dir)
		p.StartDaemon()
		p.set(t, "true")
		if err := p.checkpoint(p.Ctx(), dir); err != nil {
			t.Error(err)
		}
		p.goesOn("the next checkpoint")
	})
	t.Run("what is refused", func(t *testing.T) { checkpointPodRefused(t, p) })
}

// checkpointPodRefused: requests that are wrong are refused with the field, and write nothing.
func checkpointPodRefused(t *testing.T, p *pair) {
	p.set(t, "true")
	other := p.RunPod("other", "sleep 1000")
	defer p.RemovePod(other.Sandbox)
	created := p.Create(p.pod, p.Container("created", "sleep 1000"), p.sandbox)
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(r *runtimeapi.CheckpointPodRequest)
		code   codes.Code
		words  []string
	}{
		{func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "" }, codes.InvalidArgument, []string{"pod_sandbox_id"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "missing" }, codes.NotFound, []string{"missing"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = "relative" }, codes.InvalidArgument, []string{"output_path", "absolute"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = dir + "/missing" }, codes.InvalidArgument, []string{"output_path"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = link }, codes.InvalidArgument, []string{"output_path"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = nil }, codes.InvalidArgument, []string{"container_ids is empty"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = append(r.ContainerIds, r.ContainerIds[0]) }, codes.InvalidArgument, []string{"container_ids[2]", "twice"}},
		{func(r *runtimeapi.CheckpointPodRequest) {
			r.ContainerIds = append(r.ContainerIds, r.ContainerIds[0][:30])
		}, codes.InvalidArgument, []string{"container_ids[2]", "twice"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds[1] = "missing" }, codes.NotFound, []string{"container_ids[1]", "missing"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds[1] = created }, codes.FailedPrecondition, []string{"container_ids[1]", "not running"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds[1] = other.Container }, codes.InvalidArgument, []string{"container_ids[1]", "another sandbox"}},
		{func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{"tcp": "close"} }, codes.InvalidArgument, []string{"options", "tcp"}},
	} {
		request := &runtimeapi.CheckpointPodRequest{PodSandboxId: p.pod, OutputPath: dir, ContainerIds: append([]string(nil), p.ids...)}
		c.change(request)
		_, err := p.Runtime.CheckpointPod(p.Ctx(), request)
		checkRefusal(t, err, c.code, append(c.words, "cannot checkpoint sandbox"))
	}
	isEmpty(t, dir)
	host := p.Sandbox("host")
	host.Hostname, host.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
	sandbox := p.RunSandbox(host)
	defer p.RemovePod(sandbox)
	config := p.Container("c", "sleep 1000")
	config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	id := p.Create(sandbox, config, host)
	p.StartContainer(id)
	_, err := p.Runtime.CheckpointPod(p.Ctx(), &runtimeapi.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: dir, ContainerIds: []string{id}})
	checkRefusal(t, err, codes.FailedPrecondition, []string{"network of the host"})
	isEmpty(t, dir)
}

// TestRestorePod: both containers go on counting in a new pod on another berth. They are created, and nothing of them runs
// before their start. A checkpoint that someone has changed, and a request that does not match it, make nothing.
func TestRestorePod(t *testing.T) {
	dir := t.TempDir()
	last := map[string]int{}
	t.Run("write", func(t *testing.T) {
		p := withPair(t)
		p.run()
		defer p.RemovePod(p.pod)
		if err := p.checkpoint(p.Ctx(), dir); err != nil {
			t.Fatal(err)
		}
		for name, file := range map[string]string{"a": "0.tar", "b": "1.tar"} {
			last[name] = lastCount(t, unpackTar(t, filepath.Join(unpackTar(t, filepath.Join(dir, file)), "rootfs-diff.tar")))
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	p := withPair(t)
	p.sandbox = p.Sandbox("pair")
	request := func() *runtimeapi.RestorePodRequest {
		return &runtimeapi.RestorePodRequest{CheckpointPath: dir, Config: p.sandbox, ContainerConfigs: p.configs()}
	}
	t.Run("goes on", func(t *testing.T) { restorePair(t, p, request(), last) })
	t.Run("what is refused", func(t *testing.T) { restorePodRefused(t, p, request) })
	t.Run("hostile directories", func(t *testing.T) { restorePodHostile(t, p, request) })
	t.Run("killed", func(t *testing.T) { restorePodKilled(t, p, request()) })
}

func restorePair(t *testing.T, p *pair, request *runtimeapi.RestorePodRequest, last map[string]int) {
	before := listed(t, request.CheckpointPath)
	answer, err := p.Runtime.RestorePod(p.Ctx(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer p.RemovePod(answer.PodSandboxId)
	again, err := p.Runtime.RestorePod(p.Ctx(), request)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(answer) {
		t.Errorf("the same request again: %v, %v; want %v", again, err, answer)
	}
	if state := p.SandboxStatus(answer.PodSandboxId).State; state != runtimeapi.PodSandboxState_SANDBOX_READY || len(answer.RestoredContainers) != 2 {
		t.Fatalf("state %v, containers %v", state, answer.RestoredContainers)
	}
	for _, c := range answer.RestoredContainers {
		status := p.Status(c.ContainerId)
		if status.State != runtimeapi.ContainerState_CONTAINER_CREATED || status.Metadata.Name != c.Name || status.Image.Image != harness.Busybox {
			t.Errorf("container %v: %v", c, status)
		}
	}
	if a, b := p.lines(); a+b != 0 {
		t.Errorf("%d lines before the start", a+b)
	}
	for _, c := range answer.RestoredContainers {
		p.StartContainer(c.ContainerId)
	}
	p.goesOn("a restore")
	for name, n := range last {
		lines, err := harness.LogLines(p.log(name))
		if err != nil {
			t.Fatal(err)
		}
		// The last number may be in the file and not yet in the log when the processes are stopped.
		if next, err := strconv.Atoi(lines[0]); err != nil || next < n || next > n+1 {
			t.Errorf("%s goes on with %q after %d", name, lines[0], n)
		}
	}
	if _, err := p.Runtime.RestorePod(p.Ctx(), request); err == nil || !strings.Contains(err.Error(), answer.PodSandboxId) {
		t.Errorf("a restore of a pod that runs: %v", err)
	}
	if after := listed(t, request.CheckpointPath); after != before {
		t.Errorf("the checkpoint has changed: %s, before %s", after, before)
	}
}

// listed describes the files in a directory.
func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, info.Name(), info.Mode(), info.Size(), info.ModTime())
	}
	return out.String()
}

// refusesRestore: a request is refused, and makes nothing.
func refusesRestore(t *testing.T, p *pair, request *runtimeapi.RestorePodRequest, code codes.Code, words ...string) {
	t.Helper()
	_, err := p.Runtime.RestorePod(p.Ctx(), request)
	checkRefusal(t, err, code, append(words, "cannot restore sandbox"))
}

func restorePodRefused(t *testing.T, p *pair, request func() *runtimeapi.RestorePodRequest) {
	p.ImportDeclaring("docker.io/library/other:1", []string{"/other"})
	before := p.StillGround()
	for name, c := range map[string]struct {
		change func(r *runtimeapi.RestorePodRequest)
		code   codes.Code
		words  []string
	}{
		"no path":              {func(r *runtimeapi.RestorePodRequest) { r.CheckpointPath = "" }, codes.InvalidArgument, []string{"checkpoint_path"}},
		"no checkpoint":        {func(r *runtimeapi.RestorePodRequest) { r.CheckpointPath = t.TempDir() }, codes.NotFound, []string{"pod.json"}},
		"no config":            {func(r *runtimeapi.RestorePodRequest) { r.Config = nil }, codes.InvalidArgument, []string{"config is missing"}},
		"no containers":        {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = nil }, codes.InvalidArgument, []string{"container_configs is empty"}},
		"an option":            {func(r *runtimeapi.RestorePodRequest) { r.Options = map[string]string{"x": ""} }, codes.InvalidArgument, []string{"options", "x"}},
		"an unknown handler":   {func(r *runtimeapi.RestorePodRequest) { r.RuntimeHandler = "none" }, codes.InvalidArgument, []string{"none"}},
		"a container less":     {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = r.ContainerConfigs[:1] }, codes.InvalidArgument, []string{"container_configs", `"b"`}},
		"a container twice":    {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1] = r.ContainerConfigs[0] }, codes.InvalidArgument, []string{"container_configs[1]", "twice"}},
		"another name":         {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Metadata.Name = "c" }, codes.InvalidArgument, []string{"container_configs[1].metadata.name", `"c"`}},
		"another command":      {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Command[2] = "exit" }, codes.InvalidArgument, []string{"container_configs[1].command"}},
		"another image":        {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Image.Image = "docker.io/library/other:1" }, codes.InvalidArgument, []string{"container_configs[1]", "image.image", "other:1"}},
		"an image that is not": {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Image.Image = "docker.io/library/none:1" }, codes.NotFound, []string{"container_configs[1]", "none:1"}},
		"a path as image":      {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Image.Image = "/x.tar" }, codes.InvalidArgument, []string{"container_configs[1]", "image.image"}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := request()
			c.change(changed)
			refusesRestore(t, p, changed, c.code, c.words...)
		})
	}
	if differences := p.AwaitGround(before, 30*time.Second); differences != "" {
		t.Error(differences)
	}
}

// restorePodHostile: each directory is refused with what is bad, and nothing is left.
func restorePodHostile(t *testing.T, p *pair, request func() *runtimeapi.RestorePodRequest) {
	describe := func(t *testing.T, dir string, change func(pod map[string]any)) {
		t.Helper()
		var pod map[string]any
		path := filepath.Join(dir, "pod.json")
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &pod)
		}
		if err == nil {
			change(pod)
			data, err = json.Marshal(pod)
		}
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file := func(pod map[string]any, name string) {
		pod["containers"].([]any)[1].(map[string]any)["file"] = name
	}
	link := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, "moved")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("moved", filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := p.StillGround()
	for name, c := range map[string]struct {
		edit  func(t *testing.T, dir string)
		code  codes.Code
		words []string
	}{
		"a description that is a link": {link("pod.json"), codes.InvalidArgument, []string{"pod.json"}},
		"an archive that is a link":    {link("1.tar"), codes.InvalidArgument, []string{"1.tar"}},
		"an archive less": {func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Remove(filepath.Join(dir, "1.tar")); err != nil {
				t.Fatal(err)
			}
		}, codes.NotFound, []string{"1.tar"}},
		"half an archive": {func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Truncate(filepath.Join(dir, "1.tar"), 20000); err != nil {
				t.Fatal(err)
			}
		}, codes.InvalidArgument, []string{"archive"}},
		"archives that are swapped": {func(t *testing.T, dir string) {
			t.Helper()
			at := func(name string) string { return filepath.Join(dir, name) }
			for _, move := range [][2]string{{"0.tar", "x"}, {"1.tar", "0.tar"}, {"x", "1.tar"}} {
				if err := os.Rename(at(move[0]), at(move[1])); err != nil {
					t.Fatal(err)
				}
			}
		}, codes.InvalidArgument, []string{"config.dump", "is that of container"}},
		"another version": {func(t *testing.T, dir string) {
			describe(t, dir, func(pod map[string]any) { pod["version"] = 2 })
		}, codes.InvalidArgument, []string{"pod.json", "version 2"}},
		"a file outside of it": {func(t *testing.T, dir string) {
			describe(t, dir, func(pod map[string]any) { file(pod, "../1.tar") })
		}, codes.InvalidArgument, []string{"pod.json", "../1.tar"}},
		"one file for both": {func(t *testing.T, dir string) {
			describe(t, dir, func(pod map[string]any) { file(pod, "0.tar") })
		}, codes.InvalidArgument, []string{"pod.json", "0.tar"}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := request()
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(changed.CheckpointPath)); err != nil {
				t.Fatal(err)
			}
			c.edit(t, dir)
			changed.CheckpointPath = dir
			refusesRestore(t, p, changed, c.code, c.words...)
		})
	}
	if differences := p.AwaitGround(before, 30*time.Second); differences != "" {
		t.Error(differences)
	}
}

// restorePodKilled: what a daemon that is killed in a restore has made is gone after the next start, and the same
// request restores the pod.
func restorePodKilled(t *testing.T, p *pair, request *runtimeapi.RestorePodRequest) {
	began := filepath.Join(t.TempDir(), "began")
	whole, err := os.ReadFile(p.criu)
	if err != nil {
		t.Fatal(err)
	}
	waits := strings.Replace(string(whole), "\n", fmt.Sprintf("\n[ \"$1\" != swrk ] || { touch %s; sleep 600; }\n", began), 1)
	if err := os.WriteFile(p.criu, []byte(waits), 0o700); err != nil {
		t.Fatal(err)
	}
	before, done := groundOfKilled(p.Berth), make(chan error, 1)
	go func() {
		_, err := p.Runtime.RestorePod(p.Ctx(), request)
		done <- err
	}()
	p.Await("CRIU", func() bool { _, err := os.Stat(began); return err == nil || len(done) > 0 })
	pods, err := p.Runtime.ListPodSandbox(p.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Metadata.Name == "pair" {
			t.Errorf("a pod is listed before it is whole: %v", pod)
		}
	}
	p.KillDaemon()
	if err := <-done; err == nil {
		t.Error("the pod was restored")
	}
	if err := os.WriteFile(p.criu, whole, 0o700); err != nil {
		t.Fatal(err)
	}
	p.StartDaemon()
	differences := ""
	p.Await("the ground as it was", func() bool { differences = before.Differences(groundOfKilled(p.Berth)); return differences == "" })
	answer, err := p.Runtime.RestorePod(p.Ctx(), request)
	if err != nil {
		t.Fatalf("the next restore: %v; left before: %s", err, differences)
	}
	p.RemovePod(answer.PodSandboxId)
}
