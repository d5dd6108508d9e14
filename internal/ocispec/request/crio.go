package request

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// The annotations of CRI-O's that a configuration can allow pods. Both have an older name,
// which is taken as well.
const (
	// CRIOUnified, a slash and a container's name: files of cgroup v2 of the container, as
	// FILE=VALUE;FILE=VALUE. Values may be in base64. They hide those of the request.
	CRIOUnified = "unified-cgroup.crio.io"
	// CRIOLinkLogs names an emptyDir volume of the pod. Where containers mount it, they see
	// the pod's logs, which they cannot write to.
	CRIOLinkLogs = "link-logs.crio.io"
)

// crioNames are the annotations of CRI-O's under which a container can ask for one.
func crioNames(name, container string) []string {
	if name == CRIOUnified {
		return []string{CRIOUnified + "/" + container, "io.kubernetes.cri-o.UnifiedCgroup." + container}
	}
	return []string{CRIOLinkLogs, "io.kubernetes.cri-o.LinkLogs"}
}

// isAllowed reports whether the key is one of those that the allowed annotations go by.
func isAllowed(key string, allowed []string) bool {
	return slices.ContainsFunc(allowed, func(name string) bool {
		return slices.ContainsFunc(crioNames(name, ""), func(prefix string) bool {
			return key == prefix || name == CRIOUnified && strings.HasPrefix(key, prefix)
		})
	})
}

// WithAnnotations is a container's request with what its pod asks for by those of CRI-O's
// annotations that are allowed; the request itself is not changed. Kind Invalid, with the
// annotation's name.
func WithAnnotations(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, allowed []string) (*runtimeapi.ContainerConfig, error) {
	for _, name := range allowed {
		key, value := askedByPod(sandbox, crioNames(name, config.GetMetadata().GetName()))
		if key == "" {
			continue
		}
		config = proto.CloneOf(config)
		apply := withUnified
		if name == CRIOLinkLogs {
			apply = withLogs
		}
		if err := apply(config, sandbox, value); err != nil {
			return nil, fielderror.Invalid(`sandbox_config.annotations["`+key+`"]`, "%v", err)
		}
	}
	return config, nil
}

// askedByPod is the first of the annotations that the pod has, and its value.
func askedByPod(sandbox *runtimeapi.PodSandboxConfig, names []string) (key, value string) {
	for _, key := range names {
		if value := sandbox.GetAnnotations()[key]; value != "" {
			return key, value
		}
	}
	return "", ""
}

func withUnified(config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig, entries string) error {
	if config.Linux == nil {
		config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if config.Linux.Resources == nil {
		config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	res := config.Linux.Resources
	if res.Unified == nil {
		res.Unified = map[string]string{}
	}
	for entry := range strings.SplitSeq(entries, ";") {
		if entry == "" {
			continue
		}
		file, value, ok := strings.Cut(entry, "=")
		if !ok {
			return fmt.Errorf("%q: want FILE=VALUE", entry)
		}
		res.Unified[file] = plainValue(value)
	}
	return nil // the files are judged with the others
}

// plainValue is a value that may be in base64. Nothing says whether it is: numbers such as
// 67108864 can be decoded, too, but no digit begins what decodes to ASCII.
func plainValue(value string) string {
	decoded, err := base64.StdEncoding.DecodeString(value)
	if err != nil || slices.ContainsFunc(decoded, func(b byte) bool { return b >= 0x80 }) {
		return value
	}
	return string(decoded)
}

// withLogs puts the pod's logs where the emptyDir volume is mounted, which a kubelet keeps
// in the pod's own directory.
func withLogs(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, volume string) error {
	if strings.Contains(volume, "/") || HasControl(volume) {
		return fmt.Errorf("%q is not the name of a volume", volume)
	}
	logs, uid := sandbox.GetLogDirectory(), sandbox.GetMetadata().GetUid()
	if logs == "" || uid == "" {
		return errors.New("the pod has no log directory, or no uid by which its volumes could be found")
	}
	dir := "/" + path.Join("pods", uid, "volumes/kubernetes.io~empty-dir", volume)
	for _, m := range config.GetMounts() {
		if m.GetImage() == nil && strings.HasSuffix(path.Clean(m.GetHostPath()), dir) {
			m.HostPath, m.Readonly, m.SelinuxRelabel = logs, true, false
			m.Propagation = runtimeapi.MountPropagation_PROPAGATION_PRIVATE
		}
	}
	return nil
}
