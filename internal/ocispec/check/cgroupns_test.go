package check

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

func TestCgroupnsRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	const field = `config.annotations["run.berth.cgroupns"]`
	set := func(c config, value string) { c.Annotations[request.AnnotationCgroupns] = value }
	refuse(t, requesttest.MappedSandbox, Sandbox, []refusal[config]{
		{func(c config) { set(c, "") }, errs.Invalid, field},
		{func(c config) { set(c, "node") }, errs.Invalid, field},
		{func(c config) { set(c, "host") }, errs.Invalid, field},
		{func(c config) {
			set(c, "host")
			c.Linux.SecurityContext.Privileged = true
		}, errs.Invalid, field + ": host cannot be combined with a user namespace"},
	})
}
