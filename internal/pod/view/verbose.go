package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// jobInfo is what verbose status says of a job that works on the object.
type jobInfo struct {
	Kind     string `json:"kind"`
	Stage    string `json:"stage"`
	WaitsFor string `json:"waitsFor"`
	Age      string `json:"age"`
}

func (v *View) jobInfo(key string) *jobInfo {
	j := v.jobs.Find(key)
	if j == nil {
		return nil
	}
	info := j.Info()
	return &jobInfo{string(info.Kind), info.Stage, info.WaitsFor, info.Age.Round(time.Millisecond).String()}
}

// sandboxInfo is what crictl inspectp shows beyond the API. Tools know runtimeSpec,
// cniResult, pid and netNamespaceClosed from containerd.
func (v *View) sandboxInfo(rec *record.Sandbox) (map[string]string, error) {
	return verbose(struct {
		State       record.SandboxState `json:"state"`
		Message     string              `json:"message,omitempty"`
		Pid         int                 `json:"pid"`
		Engine      any                 `json:"engine,omitempty"`
		Network     any                 `json:"network,omitempty"`
		CNIResult   *shownNetwork       `json:"cniResult,omitempty"`
		NetNSClosed bool                `json:"netNamespaceClosed"`
		RuntimeSpec *sandboxSpec        `json:"runtimeSpec"`
		Config      any                 `json:"config"`
		Handler     string              `json:"runtimeHandler,omitempty"`
		Hostname    string              `json:"hostname,omitempty"`
		LogDir      string              `json:"logDirectory,omitempty"`
		Job         *jobInfo            `json:"job,omitempty"`
		Container   []string            `json:"containers,omitempty"`
		Overhead    any                 `json:"overhead"`
		Resources   any                 `json:"resources"`
	}{
		rec.State, rec.Message, podPid(v.records, rec), rec.Engine, rec.Network, shownNetworkOf(rec), netNSClosed(rec), sandboxSpecOf(rec, rec.EngineView(v.engine)),
		store.MessageOf(updatedConfig(rec)), rec.Handler,
		rec.Config.Get().GetHostname(), rec.Config.Get().GetLogDirectory(), v.jobInfo(rec.Name()), v.records.ContainersOf(rec.ID),
		rec.CurrentResources().Overhead, rec.CurrentResources().Resources,
	})
}

// netNSClosed reports whether the sandbox had a network namespace, and its network is
// gone. Stop releases the namespace, so the request says whether there was one.
func netNSClosed(r *record.Sandbox) bool {
	options := r.Config.Get().GetLinux().GetSecurityContext().GetNamespaceOptions()
	return r.State != record.SandboxReady && r.Engine != nil && options.GetNetwork() != runtimeapi.NamespaceMode_NODE
}

// updatedConfig is the request with the limits that hold now.
func updatedConfig(r *record.Sandbox) *runtimeapi.PodSandboxConfig {
	if r.Resources == nil {
		return r.Config.Get()
	}
	config := proto.CloneOf(r.Config.Get())
	if config.Linux == nil {
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{}
	}
	config.Linux.Overhead, config.Linux.Resources = r.Resources.Overhead.Get(), r.Resources.Resources.Get()
	return config
}

// sandboxSpec is the part of an OCI spec that describes a sandbox, in the spec's words.
// No process runs it.
type sandboxSpec struct {
	Hostname string           `json:"hostname,omitempty"`
	Linux    sandboxSpecLinux `json:"linux"`
}

type sandboxSpecLinux struct {
	CgroupsPath string            `json:"cgroupsPath,omitempty"`
	Sysctl      map[string]string `json:"sysctl,omitempty"`
	Namespaces  []sandboxSpecNS   `json:"namespaces"`
}

type sandboxSpecNS struct {
	Type string `json:"type"`
	Path string `json:"path"`
}

// sandboxSpecOf lists the namespaces that the sandbox has and does not share with the
// host. Nil unless the sandbox is ready: nothing can be entered any more.
func sandboxSpecOf(rec *record.Sandbox, view engine.SandboxView) *sandboxSpec {
	if rec.State != record.SandboxReady || rec.Engine == nil {
		return nil
	}
	config, sb := rec.Config.Get(), rec.Engine
	spec := &sandboxSpec{
		Hostname: config.GetHostname(),
		Linux:    sandboxSpecLinux{CgroupsPath: sb.CgroupParent, Sysctl: config.GetLinux().GetSysctls(), Namespaces: []sandboxSpecNS{}},
	}
	for _, ns := range view.Namespaces {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, sandboxSpecNS(ns))
	}
	return spec
}

func sandboxPid(rec *record.Sandbox) int {
	if rec.Engine == nil {
		return 0
	}
	return rec.Engine.Pid
}

// containerInfo is what crictl inspect shows beyond the API: the request and the spec,
// both with the limits that hold now. Unless secrets are to be shown, environments have
// their names alone. While the engine does not answer, "engineError" takes the place of what it
// would show.
func (v *View) containerInfo(ctx context.Context, rec *record.Container) (map[string]string, error) {
	secrets := v.showSecrets.Load()
	inspected := map[string]any{}
	if inspector, ok := v.engine.(engine.Inspector); ok {
		var err error
		inspected, err = inspector.Inspect(ctx, &engine.InspectSpec{ContainerID: rec.ID, Resources: rec.Resources.Get(), Secrets: secrets})
		switch {
		case errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Deadline):
			inspected = map[string]any{"engineError": err.Error()} // the engine is away: the record is still right
		case errs.IgnoreNotFound(err) != nil:
			return nil, err
		}
	}
	info := map[string]any{
		"sandboxID": rec.SandboxID, "state": rec.State, "pid": rec.Pid, "image": rec.Image, "removing": rec.Removing,
		"config": store.MessageOf(shownConfig(rec, secrets)),
	}
	maps.Copy(info, inspected)
	if rec.Stop != nil {
		info["stop"] = rec.Stop
	}
	if j := v.jobInfo(rec.Name()); j != nil {
		info["job"] = j
	}
	return verbose(info)
}

// shownConfig is the request with the limits that hold now, and without the values of its
// environment unless secrets are shown.
func shownConfig(r *record.Container, secrets bool) *runtimeapi.ContainerConfig {
	config := proto.CloneOf(r.Config.Get())
	if updated := r.Resources.Get(); updated != nil {
		if config.Linux == nil {
			config.Linux = &runtimeapi.LinuxContainerConfig{}
		}
		config.Linux.Resources = updated
	}
	if !secrets {
		for _, env := range config.GetEnvs() {
			env.Value = nil
		}
	}
	return config
}

// verbose puts a value where clients of CRI look for what goes beyond it.
func verbose(value any) (map[string]string, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("cannot encode verbose status: %w", err)
	}
	return map[string]string{"info": string(data)}, nil
}
