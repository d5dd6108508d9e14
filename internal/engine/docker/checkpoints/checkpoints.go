// Package checkpoints reads the checkpoints of dockershim and cri-dockerd: one JSON file per
// sandbox with what a Docker Engine does not know of the pod.
//
// It owns their format and their checksums, and the copies of files that are damaged. It never
// writes a checkpoint, and removes one only with its sandbox.
package checkpoints

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Checkpoint is the content of a file.
type Checkpoint struct {
	// Name and Namespace are the pod's.
	Name, Namespace string
	// Ports are the pod's port mappings, those without a host port among them.
	Ports []*runtimeapi.PortMapping
	// HostNetwork is true for a pod on the host's network.
	HostNetwork bool
}

// file is a checkpoint on disk.
type file struct {
	Version   string    `json:"version"`
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Data      *fileData `json:"data"`
	Checksum  uint64    `json:"checksum"`
}

type fileData struct {
	PortMappings []*filePort `json:"port_mappings"`
	HostNetwork  bool        `json:"host_network"`
}

type filePort struct {
	Protocol      *string `json:"protocol"`
	ContainerPort *int32  `json:"container_port"`
	HostPort      *int32  `json:"host_port"`
	HostIP        string  `json:"host_ip"`
}

// schemaVersion is the only one that was released.
const schemaVersion = "v1"

// Parse reads a checkpoint that any release of dockershim or cri-dockerd wrote. Kind State if it
// is damaged: it is not JSON, its checksum is not that of its content, or a port is out of range.
func Parse(raw []byte) (*Checkpoint, error) {
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("it is not JSON of a checkpoint: %w: %w", err, errs.State)
	}
	if f.Version != schemaVersion {
		return nil, fmt.Errorf("version %q is not %s: %w", f.Version, schemaVersion, errs.State)
	}
	if !isValid(&f) {
		return nil, fmt.Errorf("checksum %d is not that of its content: %w", f.Checksum, errs.State)
	}
	cp := &Checkpoint{Name: f.Name, Namespace: f.Namespace}
	if f.Data == nil {
		return cp, nil
	}
	cp.HostNetwork = f.Data.HostNetwork
	for i, p := range f.Data.PortMappings {
		mapping, err := p.mapping()
		if err != nil {
			return nil, fmt.Errorf("port mapping %d: %w", i, err)
		}
		cp.Ports = append(cp.Ports, mapping)
	}
	return cp, nil
}

// mapping reads one port. A protocol that is missing or unknown is TCP, as dockershim has it.
func (p *filePort) mapping() (*runtimeapi.PortMapping, error) {
	m := &runtimeapi.PortMapping{HostIp: p.HostIP}
	for name, port := range map[string]struct{ from, to *int32 }{
		"host port": {p.HostPort, &m.HostPort}, "container port": {p.ContainerPort, &m.ContainerPort},
	} {
		if port.from == nil {
			continue
		}
		if *port.from < 0 || *port.from > math.MaxUint16 {
			return nil, fmt.Errorf("%s %d is out of range (0-65535): %w", name, *port.from, errs.State)
		}
		*port.to = *port.from
	}
	if p.Protocol != nil {
		switch strings.ToLower(*p.Protocol) {
		case "udp":
			m.Protocol = runtimeapi.Protocol_UDP
		case "sctp":
			m.Protocol = runtimeapi.Protocol_SCTP
		}
	}
	return m, nil
}

// CorruptError is the error of a checkpoint that is damaged.
type CorruptError struct {
	// File is the checkpoint, Quarantine its copy.
	File, Quarantine string
	Err              error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("checkpoint %s is damaged, its copy is %s: %v", e.File, e.Quarantine, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Dirs are where checkpoints are.
type Dirs struct {
	// Roots are the directories of dockershim and cri-dockerd, such as /var/lib/cri-dockerd.
	Roots []string
	// Quarantine is where copies of damaged files go. It is made if it is missing.
	Quarantine string
}

// path is the file of a sandbox. dir is the name that both programs use.
func path(root, id string) string {
	const dir = "sandbox"
	return filepath.Join(root, dir, id)
}

// Read reads the checkpoint of a sandbox by its id in the Docker Engine. NotFound if there is
// none. A damaged one is copied to the quarantine, and is a CorruptError. The file stays: the former
// runtime may come back.
func (d Dirs) Read(id string) (*Checkpoint, error) {
	for _, root := range d.Roots {
		name := path(root, id)
		raw, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read a checkpoint: %w", err)
		}
		cp, err := Parse(raw)
		if err != nil {
			return nil, d.quarantine(name, raw, err)
		}
		return cp, nil
	}
	return nil, fmt.Errorf("checkpoint of sandbox %s: %w", id, errs.NotFound)
}

// quarantine keeps a copy of a file, which goes with its sandbox.
func (d Dirs) quarantine(name string, raw []byte, why error) error {
	to := filepath.Join(d.Quarantine, "checkpoint-"+filepath.Base(name))
	err := os.MkdirAll(d.Quarantine, 0o700)
	if err == nil {
		err = os.WriteFile(to, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("checkpoint %s is damaged (%w), and cannot be copied to the quarantine: %w", name, why, errs.OfDisk(err))
	}
	return &CorruptError{File: name, Quarantine: to, Err: why}
}

// Remove removes the checkpoint of a sandbox that is removed, in all directories. Nil when there is
// none.
func (d Dirs) Remove(id string) error {
	var all []error
	for _, root := range d.Roots {
		err := os.Remove(path(root, id))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			all = append(all, fmt.Errorf("cannot remove the checkpoint of sandbox %s: %w", id, errs.OfDisk(err)))
		}
	}
	return errors.Join(all...)
}
