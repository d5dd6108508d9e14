//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func hasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// sayLabel prints the label of the shell that runs it. The kernel may end the label with a zero
// byte, and ends it with no newline.
const sayLabel = `echo $(tr -d '\0' </proc/self/attr/current)`

// TestFieldsOfSELinux: a host without SELinux refuses a request for confinement by name, and
// accepts other requests. With SELinux, processes and files have the labels.
func TestFieldsOfSELinux(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	f.try(t, "sc.selinux_options", func(t *testing.T) {
		labelled := func(options *runtimeapi.SELinuxOption) func(containerConfig) {
			return func(c containerConfig) { containerSecurity(c).SelinuxOptions = options }
		}
		if hasSELinux() {
			got := f.says(t, sayLabel, labelled(&runtimeapi.SELinuxOption{Level: "s0:c1,c2"}))
			want(t, "the container's label", got, "system_u:system_r:container_t:s0:c1,c2")
			got = f.says(t, sayLabel, labelled(&runtimeapi.SELinuxOption{User: "system_u", Role: "system_r", Type: "spc_t", Level: "s0"}))
			want(t, "the label of one that is not confined", got, "system_u:system_r:spc_t:s0")
			config := f.Container("unknown", "exit 0")
			labelled(&runtimeapi.SELinuxOption{Type: "no_such_t"})(config)
			_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
			checkRefusal(t, err, codes.InvalidArgument, []string{"selinux_options", "no_such_t"})
			return
		}
		for _, options := range []*runtimeapi.SELinuxOption{{Level: "s0:c1,c2"}, {User: "user_u"}, {Role: "role_r"}, {Type: "container_t"}} {
			config := f.Container("label", "exit 0")
			labelled(options)(config)
			_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
			checkRefusal(t, err, codes.Unimplemented, []string{"selinux_options", "SELinux is not enabled"})
		}
		f.running(labelled(&runtimeapi.SELinuxOption{Type: "spc_t", Level: "s0"}))
	})
	f.try(t, "mounts.selinux_relabel", func(t *testing.T) {
		volume := filepath.Join(f.Dir, "volume")
		if err := os.Mkdir(volume, 0o777); err != nil {
			t.Fatal(err)
		}
		got := f.says(t, "echo x >/v/file && echo written", func(c containerConfig) {
			c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/v", SelinuxRelabel: true}}
			if hasSELinux() {
				containerSecurity(c).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
			}
		})
		want(t, "a relabelled volume", got, "written")
		if hasSELinux() {
			label := make([]byte, 256)
			n, err := syscall.Getxattr(filepath.Join(volume, "file"), "security.selinux", label)
			if err != nil || !strings.HasSuffix(strings.TrimRight(string(label[:max(n, 0)]), "\x00"), ":s0:c1,c2") {
				t.Errorf("the volume's file is labelled %q, %v", label[:max(n, 0)], err)
			}
		}
	})
}
