//go:build integration

package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor/server/shim/shimtest"
	"github.com/berthrun/berth/test/harness"
)

// TestSandboxAPI: a shim makes the sandboxes of pods by the sandbox API, through deaths of berth's processes. A pod of a
// shim without that API is refused.
func TestSandboxAPI(t *testing.T) {
	require.Binary(t, "runc")
	real, dir := require.Binary(t, "containerd-shim-runc-v2"), t.TempDir()
	program := filepath.Join(dir, "containerd-shim-runc-v2")
	if err := shimtest.Write(program, dir, real, shimtest.Sandbox); err != nil {
		t.Fatal(err)
	}
	f := newFields(t, harness.Options{Config: fmt.Sprintf("[handlers.api]\nkind = \"shim\"\npath = %q\nsandbox = \"api\"\npod_annotations = [\"example.com/*\"]\n"+
		"[handlers.none]\nkind = \"shim\"\npath = %q\nsandbox = \"api\"\n", program, real)}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	pods := map[runtimeapi.NamespaceMode]harness.Pod{}
	for _, mode := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
		pods[mode] = runInSandboxOf(b, strings.ToLower(mode.String()), "api", mode, "echo ready; trap 'exit 7' TERM; while :; do sleep 0.05; done")
	}
	if got := b.ExecOut(pods[runtimeapi.NamespaceMode_POD].Container, "cat /proc/1/comm"); got != "sleep" {
		t.Errorf("the first process of a shared PID namespace is %q", got)
	}
	checkRootContainers(b, pods)
	for _, pod := range pods {
		answer, err := b.Runtime.PodSandboxStats(b.Ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod.Sandbox})
		if err != nil || answer.GetStats().GetLinux().GetMemory().GetUsageBytes().GetValue() == 0 {
			t.Errorf("statistics: %v %v", answer, err)
		}
		endAndRemove(b, pod)
		if !shimtest.ShutDown(dir, pod.Sandbox) {
			t.Error("the shim has not got ShutdownSandbox")
		}
	}
	checkSandboxRequest(b, dir)
	_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("none"), RuntimeHandler: "none"})
	for _, text := range []string{`handler "none"`, real + " CreateSandbox", `sandbox = "runtime"`} {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("a shim without the API: %v, want %q", err, text)
		}
	}
	b.Await("the removal of the sandbox that failed", func() bool {
		list, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
		return err == nil && !slices.ContainsFunc(list.GetItems(), func(p *runtimeapi.PodSandbox) bool { return p.RuntimeHandler == "none" })
	})
	checkNoHandlerState(b)
}

// checkSandboxRequest checks what a shim gets from CreateSandbox. dir has the files of the shim.
func checkSandboxRequest(b *harness.Berth, dir string) {
	b.T.Helper()
	config := b.Sandbox("asks")
	config.Annotations = map[string]string{"example.com/size": "large", "org.other/size": "small"}
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "api"})
	if err != nil {
		b.T.Fatal(err)
	}
	got, err := shimtest.Request(dir, answer.PodSandboxId)
	if err != nil {
		b.T.Fatal(err)
	}
	sent := &runtimeapi.PodSandboxConfig{}
	if err := proto.Unmarshal(got.GetOptions().GetValue(), sent); err != nil {
		b.T.Fatal(err)
	}
	if got.GetSandboxID() != answer.PodSandboxId || got.GetOptions().GetTypeUrl() != "runtime.v1.PodSandboxConfig" || got.GetNetnsPath() == "" || len(got.GetRootfs()) > 0 {
		b.T.Errorf("CreateSandbox got %v", got)
	}
	if !proto.Equal(sent.GetMetadata(), config.GetMetadata()) || sent.GetLinux().GetCgroupParent() == "" {
		b.T.Errorf("the shim got the configuration %v", sent)
	}
	for _, annotations := range []map[string]string{sent.GetAnnotations(), got.GetAnnotations()} {
		if annotations["example.com/size"] != "large" || annotations["org.other/size"] != "" || annotations["io.kubernetes.cri.sandbox-id"] != answer.PodSandboxId {
			b.T.Errorf("the shim got the annotations %v", annotations)
		}
	}
	b.RemovePod(answer.PodSandboxId)
}
