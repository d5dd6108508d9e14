package preflight

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/berthrun/berth/internal/provision"
)

// version is that of Kubernetes.
type version struct{ major, minor int }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

// versionOf runs a program for its version; zero where it does not say.
func versionOf(ctx context.Context, host provision.Host, args ...string) version {
	m := regexp.MustCompile(`^v(\d+)\.(\d+)\.`).FindStringSubmatch(versionText(ctx, host, args...))
	if m == nil {
		return version{}
	}
	major, _ := strconv.Atoi(m[1]) // digits
	minor, _ := strconv.Atoi(m[2])
	return version{major, minor}
}

// versionText runs a program for its version, as in "v1.36.3"; "" where it does not say.
func versionText(ctx context.Context, host provision.Host, args ...string) string {
	if !host.Live() || args[0] == "" {
		return ""
	}
	out, err := host.Run(ctx, provision.Command{Args: args})
	if err != nil {
		return ""
	}
	return regexp.MustCompile(`v\d+\.\d+\.\d+[0-9A-Za-z.+-]*`).FindString(string(out))
}

// Version is that of Kubernetes on the machine: its kubeadm's, else its kubelet's, as in
// "v1.36.3"; "" where neither tells.
func Version(ctx context.Context, host provision.Host) string {
	if v := versionText(ctx, host, program(host, "kubeadm"), "version", "-o", "short"); v != "" {
		return v
	}
	return versionText(ctx, host, program(host, "kubelet"), "--version")
}
