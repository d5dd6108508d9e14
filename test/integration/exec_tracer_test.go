//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/attack"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestContainersThatMayTraceDoNotReachTheHost tests the measures of docs/running.md against a
// container with CAP_SYS_PTRACE that waits for the runtime's helper of an exec. In a user namespace
// the helper is in the pod's own one. With AppArmor or SELinux the container cannot attach to it.
// Without any of them it can, as SECURITY.md says.
func TestContainersThatMayTraceDoNotReachTheHost(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, change := range map[string]podChange{"plain": mayTrace, "users": inUsers(mayTrace)} {
		t.Run(name, func(t *testing.T) {
			if name == "users" {
				b.Needs(t, translate.UserNamespaces)
			}
			h := huntExecs(t, b, "tracer-"+name, change)
			t.Logf("%+v", h)
			if h.Seen == 0 {
				t.Fatal("no helper was seen")
			}
			if confined := hasAppArmor() || hasSELinux(); confined && h.Attached > 0 {
				t.Error("the container attached to the helper, which has another profile or label")
			}
			if h.Attached > 0 && name == "users" && h.Users != fmt.Sprint("0 ", usersRoot, " 65536") {
				t.Errorf("the helper has users %q, want the pod's", h.Users)
			}
		})
	}
}

// huntExecs runs execs in a container whose program waits for their helpers.
func huntExecs(t *testing.T, b *harness.Berth, name string, change podChange) *attack.Hunt {
	t.Helper()
	const seconds = "20"
	pod := runPodWith(b, name, "", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		change(config, container)
		container.Command, container.Args = []string{attack.Hunter, seconds}, nil
		container.Mounts = append(container.Mounts, &runtimeapi.Mount{
			HostPath: attackProgram(t, b), ContainerPath: attack.Hunter, Readonly: true, SelinuxRelabel: hasSELinux(),
		})
	})
	defer b.RemovePod(pod.Sandbox)
	// The hunter ends by itself. If a container does not end after it, AwaitExit fails.
	for end := time.Now().Add(time.Minute); b.Status(pod.Container).State == runtimeapi.ContainerState_CONTAINER_RUNNING && time.Now().Before(end); {
		// The tracer decides what happens to an exec whose helper it traces.
		_, _ = b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"true"}, Timeout: 5})
	}
	b.AwaitExit(pod.Container)
	log, err := os.ReadFile(pod.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(log), " stdout F ")
	h := &attack.Hunt{}
	if err := json.Unmarshal([]byte(text), h); err != nil {
		t.Fatalf("the log is %q: %v", log, err)
	}
	return h
}

func hasAppArmor() bool {
	data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.TrimSpace(string(data)) == "Y"
}
