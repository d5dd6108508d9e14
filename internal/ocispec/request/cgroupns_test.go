package request

import (
	"testing"

	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

func TestSharesCgroupns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *requests)
		want   bool
	}{
		"plain":      {func(in *requests) { in.Config.Linux.SecurityContext.Privileged = false }, false},
		"privileged": {func(*requests) {}, true},
		"its own":    {func(in *requests) { in.Config.Annotations[AnnotationCgroupns] = "private" }, false},
		"its pod's":  {func(in *requests) { in.SandboxConfig.Annotations[AnnotationCgroupns] = "private" }, false},
		"the container's word": {func(in *requests) {
			in.SandboxConfig.Annotations[AnnotationCgroupns], in.Config.Annotations[AnnotationCgroupns] = "private", "host"
		}, true},
		"in a user namespace": {func(in *requests) { requesttest.InUserNamespace(in.SandboxConfig, in.Config) }, false},
	} {
		in := kubeletRequests()
		in.Config.Linux.SecurityContext.Privileged = true
		in.SandboxConfig.Linux.SecurityContext.Privileged = true
		c.change(&in)
		if got := SharesCgroupns(in.Config, in.SandboxConfig); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
