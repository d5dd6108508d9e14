// Package innode is what berth does inside of the containers of a cluster. In a node, before and
// beside systemd, it prepares the container to be a machine. In a load balancer it runs haproxy. On
// a control plane it talks to etcd. It knows files, mounts and processes of its container, and no
// cluster.
package innode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Files that `berth cluster` writes.
const (
	// Dir has all of them.
	Dir = "/etc/berth/cluster"
	// KubeadmFile is kubeadm's configuration of the node.
	KubeadmFile = Dir + "/kubeadm.yaml"
	// ServicesFile is a script that handles packets for services that kube-proxy has no rules for.
	// ServicesUnit runs it.
	ServicesFile = Dir + "/services"
	ServicesUnit = "berth-services.service"
	// addressesFile has the addresses that the node's files contain. During a rewrite, halfFile has
	// all addresses that they may contain.
	addressesFile = Dir + "/addresses"
	halfFile      = Dir + "/addresses.half"
	// uuidFile is the node's own product_uuid.
	uuidFile = Dir + "/product_uuid"
)

// node is the file system of a node; tests have their own.
type node struct{ root string }

func (n node) path(name string) string { return filepath.Join(n.root, name) }

// Start prepares the node and executes systemd in place of this process. It returns only with an
// error.
func Start(ctx context.Context, lookup func(string) (string, bool)) error {
	if os.Getpid() != 1 {
		return errors.New("this is for the first process of a node")
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cannot share the node's mounts with its pods: %w", err)
	}
	addresses, err := own()
	if err != nil {
		return fmt.Errorf("cannot read the node's addresses: %w", err)
	}
	n := node{"/"}
	for _, step := range []func() error{
		n.machineID,
		n.productUUID,
		n.kernelLog,
		func() error { return n.resolver(ctx, addresses) },
		func() error { return n.search(lookup) },
		func() error { return n.proxies(lookup) },
		func() error { return n.renew(ctx, addresses) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	const systemd = "/sbin/init"
	return fmt.Errorf("cannot run %s: %w", systemd, syscall.Exec(systemd, []string{systemd}, os.Environ()))
}

// machineID gives the node its own machine ID: systemd would use the host's.
func (n node) machineID() error {
	file := n.path("etc/machine-id")
	if text, err := os.ReadFile(file); err == nil && len(strings.TrimSpace(string(text))) == 32 {
		return nil
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	if err := os.WriteFile(file, []byte(hex.EncodeToString(id)+"\n"), 0o444); err != nil {
		return fmt.Errorf("cannot write the machine id: %w", err)
	}
	return nil
}

// productUUID hides the host's, which the kubelet would report for every node.
func (n node) productUUID() error {
	target, err := filepath.EvalSymlinks(n.path("sys/class/dmi/id/product_uuid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot find product_uuid: %w", err)
	}
	file := n.path(uuidFile)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		if err := n.write(uuidFile, uuid.NewString()+"\n"); err != nil {
			return err
		}
	}
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount the node's product_uuid: %w", err)
	}
	return nil
}

// kernelLog is the device from which the kubelet reads out-of-memory kills. Rootless engines have
// none.
func (n node) kernelLog() error {
	file := n.path("dev/kmsg")
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Symlink("/dev/console", file); err != nil {
		return fmt.Errorf("cannot make /dev/kmsg: %w", err)
	}
	return nil
}

// search sets the search domains of the cluster file, and makes the resolver look up names without
// a dot as they are first: nodes know each other by such names.
func (n node) search(lookup func(string) (string, bool)) error {
	domains, set := lookup("KIND_DNS_SEARCH")
	file := n.path("etc/resolv.conf")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !set {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot set the search domains: %w", err)
	}
	wanted := string(text)
	if set {
		wanted = withSearch(wanted, domains)
	}
	if wanted = namesFirst(wanted); wanted == string(text) {
		return nil
	}
	// The engine mounts the file: it cannot be replaced, only overwritten.
	if err := os.WriteFile(file, []byte(wanted), 0o644); err != nil {
		return fmt.Errorf("cannot set the search domains: %w", err)
	}
	return nil
}

// namesFirst is a resolv.conf with the option ndots:0, unless it sets ndots; docker writes it so.
// Without the option the resolver queries a node's name in each search domain first, at a server
// that may be distant or unreachable.
func namesFirst(text string) string {
	searches := false
	for line := range strings.Lines(text) {
		switch fields := strings.Fields(line); {
		case len(fields) == 0:
		case fields[0] == "options" && slices.ContainsFunc(fields, func(o string) bool { return strings.HasPrefix(o, "ndots:") }):
			return text
		case fields[0] == "search" || fields[0] == "domain":
			searches = true
		}
	}
	if !searches {
		return text
	}
	return strings.TrimRight(text, "\n") + "\noptions ndots:0\n"
}

// withSearch is a resolv.conf with other search domains.
func withSearch(text, domains string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word != "search" && word != "domain" {
			out.WriteString(line)
		}
	}
	if domains != "" {
		out.WriteString("search " + domains + "\n")
	}
	return out.String()
}

// proxies are for every unit of the node.
func (n node) proxies(lookup func(string) (string, bool)) error {
	var pairs []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		for _, name := range []string{name, strings.ToLower(name)} {
			if value, _ := lookup(name); value != "" {
				// systemd reads % and quotes.
				pairs = append(pairs, fmt.Sprintf("%q", name+"="+strings.ReplaceAll(value, "%", "%%")))
			}
		}
	}
	const file = "/etc/systemd/system.conf.d/10-proxies.conf"
	if len(pairs) == 0 {
		if err := errs.IgnoreNotExist(os.Remove(n.path(file))); err != nil {
			return err
		}
		return nil
	}
	return n.write(file, "[Manager]\nDefaultEnvironment="+strings.Join(pairs, " ")+"\n")
}

func (n node) write(name, text string) error {
	file := n.path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// own are the node's reachable addresses, IPv4 first.
func own() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var four, six []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		if prefix.Addr().Is4() {
			four = append(four, prefix.Addr())
		} else {
			six = append(six, prefix.Addr())
		}
	}
	return append(four, six...), nil
}
