package labels

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// PauseName is the container's part in the name of a pause container.
const PauseName = "POD"

const (
	prefix    = "k8s"
	separator = "_"
	// maxPart is the longest part of a name in bytes, as Kubernetes has it for names. Docker
	// has no limit.
	maxPart = 253
	// parts is the number of parts of a name without a suffix.
	parts = 6
)

// SandboxName returns the name in Docker of a pod's pause container:
// k8s_POD_<pod>_<namespace>_<uid>_<attempt>.
func SandboxName(config *runtimeapi.PodSandboxConfig) string {
	return join(PauseName, config.GetMetadata(), config.GetMetadata().GetAttempt())
}

// ContainerName returns the name in Docker of a container:
// k8s_<container>_<pod>_<namespace>_<uid>_<attempt>.
func ContainerName(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) string {
	container := config.GetMetadata().GetName()
	// A name with a dot looks like one of a kubelet before 1.6, which put a hash behind it.
	if container == PauseName || strings.Contains(container, ".") {
		container = replace(strings.ReplaceAll(container, ".", "-"), container)
	}
	return join(container, sandbox.GetMetadata(), config.GetMetadata().GetAttempt())
}

// join makes a name of its parts. The names of Kubernetes fit as they are. Other clients of CRI
// may use characters that Docker refuses: such a part gets a readable replacement.
func join(container string, pod *runtimeapi.PodSandboxMetadata, attempt uint32) string {
	return strings.Join([]string{
		prefix, part(container), part(pod.GetName()), part(pod.GetNamespace()), part(pod.GetUid()),
		strconv.FormatUint(uint64(attempt), 10),
	}, separator)
}

func part(s string) string {
	if len(s) <= maxPart && !strings.ContainsFunc(s, isRefused) {
		return s
	}
	return replace(s, s)
}

// replace returns readable without the characters that Docker refuses, and with a hash of
// original behind it, which keeps different parts different.
func replace(readable, original string) string {
	hash := fmt.Sprintf("-%08x", sha256.Sum256([]byte(original)))[:9]
	readable = strings.Map(func(r rune) rune {
		if isRefused(r) {
			return '-'
		}
		return r
	}, readable)
	return readable[:min(len(readable), maxPart-len(hash))] + hash
}

// isRefused reports whether a part of a name cannot have r. Docker takes letters, digits and
// "_.-"; the underscore separates the parts.
func isRefused(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
		return false
	}
	return true
}

// WithSuffix returns name with a random suffix, for a second attempt after Conflict. It replaces
// the suffix of an earlier attempt.
func WithSuffix(name string) string {
	split := strings.Split(name, separator)
	base := strings.Join(split[:min(len(split), parts)], separator)
	return fmt.Sprintf("%s%s%08x", base, separator, rand.Uint32())
}

// Parsed is the content of a name. Parts of names that Kubernetes refuses are not the original
// ones, see SandboxName; labels have those.
type Parsed struct {
	// Container is "" in the name of a pause container.
	Container string
	// UID can be "".
	Pod, Namespace, UID string
	Attempt             uint32
	// Suffix is what WithSuffix added: 8 hex digits, or "".
	Suffix string
}

// Parse reads a name that berth, dockershim or cri-dockerd gave to a container, with or without
// the slash that Docker puts before names. Any other name is Invalid, those that a kubelet
// before 1.6 gave among them.
func Parse(name string) (Parsed, error) {
	split := strings.Split(strings.TrimPrefix(name, "/"), separator)
	if len(split) < parts || len(split) > parts+1 || split[0] != prefix {
		return Parsed{}, notOurs(name, "it has not the form k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT")
	}
	p := Parsed{Container: split[1], Pod: split[2], Namespace: split[3], UID: split[4]}
	if p.Container == "" || p.Pod == "" || p.Namespace == "" {
		return Parsed{}, notOurs(name, "the container, the pod or the namespace is empty")
	}
	if strings.Contains(p.Container, ".") {
		return Parsed{}, notOurs(name, "a kubelet before 1.6 made it")
	}
	if strings.ContainsFunc(strings.Join(split[1:5], ""), isRefused) {
		return Parsed{}, notOurs(name, "it has characters that Docker refuses")
	}
	attempt, err := strconv.ParseUint(split[5], 10, 32)
	if err != nil || strconv.FormatUint(attempt, 10) != split[5] {
		return Parsed{}, notOurs(name, fmt.Sprintf("the attempt %q is not a number", split[5]))
	}
	p.Attempt = uint32(attempt)
	if p.Container == PauseName {
		p.Container = ""
	}
	if len(split) > parts {
		p.Suffix = split[parts]
		if !isSuffix(p.Suffix) {
			return Parsed{}, notOurs(name, fmt.Sprintf("the suffix %q is not 8 hex digits", p.Suffix))
		}
	}
	return p, nil
}

func isSuffix(s string) bool {
	return len(s) == 8 && strings.Trim(s, "0123456789abcdef") == ""
}

func notOurs(name, why string) error {
	return fmt.Errorf("%q is not the name of a pod's container: %s: %w", name, why, errs.Invalid)
}
