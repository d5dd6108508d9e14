// Package podfiles writes the files that the containers of a pod see in /etc.
package podfiles

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Files are hosts, hostname and resolv.conf of a sandbox. Its containers see them in /etc,
// unless the kubelet mounts its own.
type Files struct {
	// Dir is the directory of the files on the host.
	Dir, Hostname string
	// Owner is the pod's root.
	Owner sysfd.Owner
	// HostNetwork is true for a pod in the host's network, which has the host's /etc/hosts.
	HostNetwork bool
	// DNS is the request's, nil for the host's resolv.conf.
	DNS *runtimeapi.DNSConfig
}

// maxEtcFile bounds what is copied from the host's /etc.
const maxEtcFile = 1 << 20

// Write writes all files. The addresses of the pod are in hosts.
func (f Files) Write(addresses []netip.Addr) error {
	if err := f.put("hostname", f.Hostname+"\n"); err != nil {
		return err
	}
	resolv, err := ResolvConf(f.DNS)
	if err != nil {
		return err
	}
	if err := f.put("resolv.conf", resolv); err != nil {
		return err
	}
	return f.WriteHosts(addresses)
}

// ResolvConf returns the content of resolv.conf for a request: the host's own when the request
// says nothing.
func ResolvConf(dns *runtimeapi.DNSConfig) (string, error) {
	servers, searches, options := dns.GetServers(), dns.GetSearches(), dns.GetOptions()
	if len(servers)+len(searches)+len(options) == 0 {
		return readEtc("resolv.conf")
	}
	var b strings.Builder
	for _, line := range []struct {
		keyword string
		words   []string
	}{{"search", searches}, {"options", options}} {
		if len(line.words) > 0 {
			fmt.Fprintf(&b, "%s %s\n", line.keyword, strings.Join(line.words, " "))
		}
	}
	for _, server := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	return b.String(), nil
}

// WriteHosts writes hosts alone.
func (f Files) WriteHosts(addresses []netip.Addr) error {
	if f.HostNetwork {
		hosts, err := readEtc("hosts")
		if err != nil {
			return err
		}
		return f.put("hosts", hosts)
	}
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for _, address := range addresses {
		fmt.Fprintf(&b, "%s\t%s\n", address, f.Hostname)
	}
	return f.put("hosts", b.String())
}

func (f Files) put(name, content string) error {
	file := filepath.Join(f.Dir, name)
	err := write(file, content)
	if err == nil && f.Owner != (sysfd.Owner{}) {
		err = os.Chown(file, f.Owner.UID, f.Owner.GID)
	}
	if err != nil {
		return fmt.Errorf("cannot write the sandbox's %s: %w", name, err)
	}
	return nil
}

// write replaces the content of a file, which containers may have mounted. It does not empty the file first:
// the file system would free the blocks, and where it discards free blocks, wait for the disk.
func write(file, content string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = cut(f, int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// cut removes what a file has beyond size.
func cut(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil || info.Size() <= size {
		return err
	}
	return f.Truncate(size)
}

func readEtc(name string) (string, error) {
	data, err := sysfile.ReadRegular(filepath.Join("/etc", name), maxEtcFile)
	if err != nil && !errors.Is(err, errs.NotFound) {
		return "", fmt.Errorf("cannot copy the host's %s: %w", name, err)
	}
	return string(data), nil
}

// Mounted are the paths that containers mount. A sandbox without an IPC namespace of its own
// shares the host's /dev/shm.
func Mounted(dir, shm string, hostIPC bool) (ocispec.Files, error) {
	files := ocispec.Files{
		Hosts:      filepath.Join(dir, "hosts"),
		Hostname:   filepath.Join(dir, "hostname"),
		ResolvConf: filepath.Join(dir, "resolv.conf"),
		Shm:        shm,
	}
	if !hostIPC {
		return files, nil
	}
	var err error
	files.Shm = "/dev/shm"
	files.ShmFlags, err = hostpath.MountFlags(files.Shm)
	return files, err
}
