package ocispec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// If a mount has flags, the spec also names the flags of the source. Otherwise the runtime would
// clear those.
func TestMountsKeepTheFlagsOfTheirSource(t *testing.T) {
	source := Source{Path: "/src", Flags: []string{"noexec", "nosuid"}}
	for name, c := range map[string]struct {
		mount *runtimeapi.Mount
		want  []string
	}{
		"as the source is": {&runtimeapi.Mount{}, []string{"rbind", "rprivate"}},
		"read-only":        {&runtimeapi.Mount{Readonly: true}, []string{"rbind", "rprivate", "noexec", "nosuid", "ro"}},
		"read-only below":  {&runtimeapi.Mount{Readonly: true, RecursiveReadOnly: true}, []string{"rbind", "rprivate", "noexec", "nosuid", "ro", "rro"}},
		"with options":     {&runtimeapi.Mount{MountOptions: []string{"nodev", "noexec"}}, []string{"rbind", "rprivate", "nodev", "noexec", "nosuid"}},
	} {
		c.mount.HostPath, c.mount.ContainerPath = "/src", "/m"
		in := Input{Host: Host{RecursiveReadOnly: true}, Sources: map[string]Source{"/src": source}}
		got, _, err := in.hostMount(0, c.mount)
		if diff := cmp.Diff(c.want, got.Options); diff != "" || err != nil {
			t.Errorf("%s (-want +got): %v\n%s", name, err, diff)
		}
	}
}
