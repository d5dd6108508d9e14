package engine

import (
	"encoding/json"
	"fmt"
	"maps"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SandboxSpec describes a sandbox to create. It is part of the sandbox's record and
// does not change after CreateSandbox.
type SandboxSpec struct {
	// ID is 64 lower-case hex digits.
	ID string
	// Config is the kubelet's request.
	Config *runtimeapi.PodSandboxConfig
	// Handler is the runtime class entry, "" for the default.
	Handler string
	// Dir holds the sandbox's files on disk: hostname, hosts, resolv.conf. It is
	// made and removed by the engine.
	Dir string
}

// Sandbox is what CreateSandbox made. It is part of the sandbox's record: one JSON object
// with the fields below and, beside them, those of Backend.
type Sandbox struct {
	// NetNS is the path of the network namespace, "" with host network.
	NetNS string
	// CgroupParent is the cgroup below which the sandbox's containers live, as
	// the OCI runtime takes it: a path (cgroupfs) or a slice name (systemd).
	CgroupParent string
	// Pid is the sandbox's own process, 0 when it has none.
	Pid int
	// Backend is a JSON object that only the engine reads, nil for none. Its fields are not
	// called netns, cgroupParent or pid. EncodeBackend makes it.
	Backend json.RawMessage
}

// EncodeBackend returns an engine's own part of a Sandbox.
func EncodeBackend(part any) (json.RawMessage, error) {
	data, err := json.Marshal(part)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the engine's part of a sandbox: %w", err)
	}
	return data, nil
}

// DecodeBackend reads the engine's own part of the sandbox.
func (sb *Sandbox) DecodeBackend(part any) error {
	if len(sb.Backend) == 0 {
		return nil
	}
	if err := json.Unmarshal(sb.Backend, part); err != nil {
		return fmt.Errorf("cannot decode the engine's part of a sandbox: %w", err)
	}
	return nil
}

// The names of the fields that every engine's sandbox has.
const (
	fieldNetNS        = "netns"
	fieldCgroupParent = "cgroupParent"
	fieldPid          = "pid"
)

// MarshalJSON writes all fields into one object.
func (sb Sandbox) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	if len(sb.Backend) > 0 {
		var own map[string]json.RawMessage
		if err := json.Unmarshal(sb.Backend, &own); err != nil {
			return nil, fmt.Errorf("cannot encode a sandbox: its engine's part: %w", err)
		}
		for name, value := range own {
			all[name] = value
		}
	}
	if sb.NetNS != "" {
		all[fieldNetNS] = sb.NetNS
	}
	if sb.CgroupParent != "" {
		all[fieldCgroupParent] = sb.CgroupParent
	}
	if sb.Pid != 0 {
		all[fieldPid] = sb.Pid
	}
	return json.Marshal(all)
}

// UnmarshalJSON reads them back: fields that not every engine has go to Backend.
func (sb *Sandbox) UnmarshalJSON(data []byte) error {
	var common struct {
		NetNS        string `json:"netns"`
		CgroupParent string `json:"cgroupParent"`
		Pid          int    `json:"pid"`
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &common); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool {
		return name == fieldNetNS || name == fieldCgroupParent || name == fieldPid
	})
	*sb = Sandbox{NetNS: common.NetNS, CgroupParent: common.CgroupParent, Pid: common.Pid}
	if len(all) == 0 {
		return nil
	}
	var err error
	sb.Backend, err = json.Marshal(all)
	return err
}

// SandboxRef has all that an engine needs to find a sandbox's figures.
type SandboxRef struct {
	Spec    *SandboxSpec
	Sandbox *Sandbox
}

// SandboxView is the content of the engine's part of a Sandbox.
type SandboxView struct {
	// Namespaces are those that the sandbox has and does not share with the host.
	Namespaces []Namespace
	// Unsafe is why the sandbox does not isolate its containers from the host, "" when it
	// does: an earlier version of the engine may have made it with a fault.
	Unsafe string
}

// Namespace is one namespace of a sandbox.
type Namespace struct {
	// Type is as in the OCI runtime specification: "network", "ipc", "uts", "pid", "user".
	Type string
	// Path is a file through which the namespace can be entered.
	Path string
}
