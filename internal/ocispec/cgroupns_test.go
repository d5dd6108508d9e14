package ocispec

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func TestSharesCgroupns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *Input)
		want   bool
	}{
		"plain":      {func(in *Input) { in.Config.Linux.SecurityContext.Privileged = false }, false},
		"privileged": {func(*Input) {}, true},
		"its own":    {func(in *Input) { in.Config.Annotations[AnnotationCgroupns] = "private" }, false},
		"its pod's":  {func(in *Input) { in.SandboxConfig.Annotations[AnnotationCgroupns] = "private" }, false},
		"the container's word": {func(in *Input) {
			in.SandboxConfig.Annotations[AnnotationCgroupns], in.Config.Annotations[AnnotationCgroupns] = "private", "host"
		}, true},
		"in a user namespace": {inUserNamespace, false},
	} {
		in := plainInput()
		in.Config.Linux.SecurityContext.Privileged = true
		in.SandboxConfig.Linux.SecurityContext.Privileged = true
		c.change(&in)
		if got := SharesCgroupns(in.Config, in.SandboxConfig); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCgroupnsRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	const field = `config.annotations["run.berth.cgroupns"]`
	set := func(c config, value string) { c.Annotations[AnnotationCgroupns] = value }
	check(t, mappedSandbox, CheckSandbox, []refusal[config]{
		{func(c config) { set(c, "") }, errs.Invalid, field},
		{func(c config) { set(c, "node") }, errs.Invalid, field},
		{func(c config) { set(c, "host") }, errs.Invalid, field},
		{func(c config) {
			set(c, "host")
			c.Linux.SecurityContext.Privileged = true
		}, errs.Invalid, field + ": host cannot be combined with a user namespace"},
	})
}
