package check

import (
	"errors"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

// asking returns a privileged container with an annotation.
func asking(name, value string) *runtimeapi.ContainerConfig {
	config := requesttest.KubeletContainer()
	config.Linux.SecurityContext.Privileged = true
	config.Annotations = map[string]string{name: value}
	return config
}

func privilegedSandbox() *runtimeapi.PodSandboxConfig {
	sandbox := requesttest.KubeletSandbox()
	sandbox.Linux.SecurityContext.Privileged = true
	return sandbox
}

func TestExtensionsRefused(t *testing.T) {
	many := make([]string, request.MaxAskedPaths+1)
	for i := range many {
		many[i] = "/" + strings.Repeat("a", i+1)
	}
	for _, c := range []struct{ name, value string }{
		{request.AnnotationTmpfs, ""},
		{request.AnnotationTmpfs, "run"},
		{request.AnnotationTmpfs, "/"},
		{request.AnnotationTmpfs, "/run/"},
		{request.AnnotationTmpfs, "/run,"},
		{request.AnnotationTmpfs, "/run,/run"},
		{request.AnnotationTmpfs, "/a/../b"},
		{request.AnnotationTmpfs, "/a\nb"},
		{request.AnnotationTmpfs, "/proc/x"},
		{request.AnnotationTmpfs, "/dev/shm"},
		{request.AnnotationTmpfs, "/etc/hosts"},
		{request.AnnotationTmpfs, strings.Join(many, ",")},
		{request.AnnotationTmpfs, "/dev/termination-log"},
		{request.AnnotationTmpfs, "/var/run/secrets/kubernetes.io/serviceaccount"},
		{request.AnnotationVolumes, "/sys/fs/cgroup"},
		{request.AnnotationVolumes, "/var/run/secrets/kubernetes.io/serviceaccount/x"},
		{request.AnnotationStorage, ""},
		{request.AnnotationStorage, "rel"},
		{request.AnnotationStorage, "/"},
		{request.AnnotationStorage, "/a:b"},
		{request.AnnotationStorage, "/a,b"},
		{request.AnnotationStorage, `/a\b`},
		{request.AnnotationStorage, "/a/"},
		{request.AnnotationStorage, "/a/../b"},
		{request.AnnotationStorage, "/a\nb"},
	} {
		err := Container(asking(c.name, c.value), privilegedSandbox())
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `config.annotations["`+c.name+`"]`) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
	both := asking(request.AnnotationTmpfs, "/run,/var")
	both.Annotations[request.AnnotationVolumes] = "/var"
	if err := Container(both, privilegedSandbox()); !errors.Is(err, errs.Invalid) {
		t.Errorf("a volume in memory: %v", err)
	}
	sandbox := requesttest.KubeletSandbox()
	sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: requesttest.IDs(100000), Gids: requesttest.IDs(100000)}
	kept := requesttest.KubeletContainer()
	kept.Linux.SecurityContext.NamespaceOptions = sandbox.Linux.SecurityContext.NamespaceOptions
	kept.Annotations[request.AnnotationStorage] = "/srv/a"
	if err := Container(kept, sandbox); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a storage in a user namespace: %v", err)
	}
}

func TestExtensionsPass(t *testing.T) {
	config := asking(request.AnnotationTmpfs, "/run,/tmp")
	config.Annotations[request.AnnotationVolumes] = "/var,/srv"
	config.Annotations[request.AnnotationStorage] = "/srv/node"
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: "/run/x", HostPath: "/x"}, &runtimeapi.Mount{ContainerPath: "/var/lib/y", HostPath: "/y"})
	config.Mounts = slices.DeleteFunc(config.Mounts, func(m *runtimeapi.Mount) bool { return strings.HasPrefix(m.ContainerPath, "/var/run") })
	if err := Container(config, privilegedSandbox()); err != nil {
		t.Error(err)
	}
	if got := request.StorageOf(config); got != "/srv/node" {
		t.Errorf("storage %q", got)
	}
}
