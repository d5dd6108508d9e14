//go:build integration

package nodenet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/require"
)

// TestServicesAnswerAtOnce: a pod that connects to a service without endpoints gets an error at
// once. Otherwise the packet would leave the node and be lost, and CoreDNS would wait half a minute
// for the API.
func TestServicesAnswerAtOnce(t *testing.T) {
	require.Root(t)
	require.Binary(t, "ip")
	node, pod := fmt.Sprintf("berth-services-%d", os.Getpid()), fmt.Sprintf("berth-services-pod-%d", os.Getpid())
	for _, name := range []string{node, pod} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() { ip(t, "netns", "del", name) })
	}
	for _, line := range []string{
		// The node has a default route to an address that does not answer, and a bridge for pods.
		"-n NODE link add out type bridge", "-n NODE addr add 192.0.2.2/24 dev out", "-n NODE link set out up",
		"-n NODE link add " + podBridge + " type bridge", "-n NODE addr add 10.244.0.1/24 dev " + podBridge,
		"-n NODE link add host0 type veth peer name eth0 netns POD", "-n NODE link set host0 master " + podBridge + " up",
		"-n NODE link set " + podBridge + " up", "-n NODE route add default via 192.0.2.1",
		"-n POD addr add 10.244.0.2/24 dev eth0", "-n POD link set eth0 up", "-n POD route add default via 10.244.0.1",
		"netns exec NODE sysctl -qw net.ipv4.ip_forward=1",
	} {
		ip(t, strings.Fields(strings.NewReplacer("NODE", node, "POD", pod).Replace(line))...)
	}
	text, err := Services(clustertest.Describe(t, "networking: {serviceSubnet: 10.96.0.0/16}\n").Networking)
	if err != nil {
		t.Fatal(err)
	}
	// Without the script the error comes late and has another text.
	const refused = "Network is unreachable"
	script := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := connectFrom(t, pod, "10.96.0.1", time.Second); strings.Contains(said, refused) {
		t.Fatalf("without the script a pod hears %q", said)
	}
	// The script runs at every start of the node.
	for range 2 {
		ip(t, "netns", "exec", node, "/bin/sh", "-eu", script)
	}
	if rules := ip(t, "-n", node, "rule"); strings.Count(rules, "10.96.0.0/16") != 1 {
		t.Errorf("rules:\n%s", rules)
	}
	if said := connectFrom(t, pod, "10.96.0.1", time.Minute); !strings.Contains(said, refused) {
		t.Errorf("a pod hears %q of a service", said)
	}
	if said := connectFrom(t, pod, "198.51.100.1", time.Second); strings.Contains(said, refused) {
		t.Errorf("a pod hears %q of another address", said)
	}
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// connectFrom connects from a pod to an address and returns the error, or "" after the timeout.
func connectFrom(t *testing.T, namespace, address string, wait time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", namespace, "bash", "-c", "exec 3<>/dev/tcp/"+address+"/443").CombinedOutput()
	if ctx.Err() != nil {
		return ""
	}
	return fmt.Sprint(err, " ", string(out))
}
