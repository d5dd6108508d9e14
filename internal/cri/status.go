package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// Values of the Version response beside berth's own version.
const (
	runtimeName       = "berth"
	runtimeAPIVersion = "v1"
	// kubeletAPIVersion is the version of the CRI's version message itself.
	kubeletAPIVersion = "0.1.0"
)

// Version implements runtimeapi.RuntimeServiceServer.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           kubeletAPIVersion,
		RuntimeName:       runtimeName,
		RuntimeVersion:    s.opts.Version,
		RuntimeApiVersion: runtimeAPIVersion,
	}, nil
}

// Status implements runtimeapi.RuntimeServiceServer. What is not ready is a
// condition with its reason and never an error: the kubelet shows it on the node.
func (s *Server) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	runtimeReady := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	networkReady := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{runtimeReady, networkReady}},
	}
	info, err := s.opts.Node.EngineInfo(ctx)
	if err != nil {
		runtimeReady.Status = false
		runtimeReady.Reason = notReadyReason(err)
		runtimeReady.Message = errs.Message(err)
	} else {
		resp.RuntimeHandlers = info.Handlers
		resp.Features = info.Features
	}
	if err := s.opts.Node.NetworkReady(ctx); err != nil {
		networkReady.Status = false
		networkReady.Reason = "NetworkPluginNotReady"
		networkReady.Message = "Network plugin returns error: " + errs.Message(err)
	}
	config, configFault := s.opts.Node.NetworkConfig()
	if networkReady.Status && configFault != nil {
		networkReady.Reason = "NetworkConfigurationFault"
		networkReady.Message = s.scrub.Text("The network is ready in spite of: " + errs.Message(configFault))
	}
	if store, ok := s.opts.Images.(damageReporter); ok {
		resp.Status.Conditions = append(resp.Status.Conditions, imageStoreCondition(store.Faults(), store.SetAside()))
	}
	if !req.GetVerbose() {
		return resp, nil
	}
	verbose := map[string]any{
		"network": s.opts.Node.NetworkInfo(), "golang": runtime.Version(), "events": s.opts.Events.EventCounters(),
	}
	if s.opts.Instance != nil {
		verbose["instance"] = s.opts.Instance
	}
	if info != nil {
		shown := map[string]any{
			"name": info.Name, "version": info.Version, "cgroupDriver": info.CgroupDriver, "warnings": info.Warnings,
		}
		if info.Starters != nil {
			shown["starters"], shown["starterReasons"] = info.Starters, info.StarterReasons
		}
		if info.HandlerInfo != nil {
			shown["handlers"] = info.HandlerInfo
		}
		if info.Checkpoint != nil {
			shown["checkpoint"] = info.Checkpoint
		}
		verbose["engine"] = shown
	}
	if calls := s.opts.Node.EngineCalls(); calls != nil {
		verbose["engineCalls"] = calls
	}
	if plugins := s.opts.Node.NRIInfo(); plugins != nil {
		verbose["nri"] = plugins
	}
	if s.opts.Config != nil {
		verbose["config"] = s.opts.Config()
	}
	if s.opts.Pools != nil {
		if pools := s.opts.Pools(); len(pools) > 0 {
			verbose["pools"] = pools
		}
	}
	if s.opts.Page != nil {
		verbose["page"] = s.opts.Page()
	}
	if s.opts.Reload != nil {
		verbose["reload"] = s.opts.Reload()
	}
	if config != nil {
		verbose["cniconfig"] = config
	}
	if resp.Info, err = asJSON(verbose); err != nil {
		return nil, err
	}
	// Administrators write these files, and they may have credentials in them. The errors of a reload quote one.
	for _, quoted := range []string{"cniconfig", "reload"} {
		if text, ok := resp.Info[quoted]; ok {
			resp.Info[quoted] = s.scrub.Text(text)
		}
	}
	if config != nil {
		// Plain text, as containerd has it.
		resp.Info["lastCNILoadStatus"] = "OK"
		if configFault != nil {
			resp.Info["lastCNILoadStatus"] = s.scrub.Text(configFault.Error())
		}
		resp.Info["lastCNILoadStatus.default"] = resp.Info["lastCNILoadStatus"]
	}
	return resp, nil
}

// notReadyReason is the reason of a runtime that is not ready.
func notReadyReason(err error) string {
	var fault *engine.NotReadyError
	if errors.As(err, &fault) && fault.Reason != "" {
		return fault.Reason
	}
	return "EngineNotReady"
}

// damageReporter is an image store that reports lost images.
type damageReporter interface {
	// Faults returns messages for users, none if the store has lost nothing, or if all of it is back.
	Faults() []string
	// SetAside returns messages about what lies in the store's quarantine.
	SetAside() []string
	// LostNames are the names that a reference may mean, for a platform, of images that the store has lost.
	LostNames(platform, ref string) []string
}

// imageStoreIntact is berth's own condition. Kubelets look at the other two only: a rebuilt store
// can serve.
const imageStoreIntact = "ImageStoreIntact"

func imageStoreCondition(faults, setAside []string) *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: imageStoreIntact, Status: len(faults) == 0, Message: strings.Join(append(faults, setAside...), "; ")}
	switch {
	case len(faults) > 0:
		c.Reason = "ImagesLost"
	case len(setAside) > 0:
		c.Reason = "SetAside"
	}
	return c
}

// asJSON turns each value into JSON, the form in which clients show verbose info.
func asJSON(values map[string]any) (map[string]string, error) {
	out := make(map[string]string, len(values))
	for name, value := range values {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("cannot encode verbose info %q: %w", name, err)
		}
		out[name] = string(data)
	}
	return out, nil
}

// RuntimeConfig implements runtimeapi.RuntimeServiceServer.
func (s *Server) RuntimeConfig(ctx context.Context, _ *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	info, err := s.opts.Node.EngineInfo(ctx)
	if err != nil {
		return nil, err
	}
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if info.CgroupDriver == "systemd" {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver},
	}, nil
}

// UpdateRuntimeConfig implements runtimeapi.RuntimeServiceServer.
func (s *Server) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr(); cidr != "" {
		if err := s.opts.Node.SetPodCIDR(ctx, cidr); errors.Is(err, errs.Invalid) {
			return nil, fmt.Errorf("runtime_config.network_config.pod_cidr: %w", err)
		} else if err != nil {
			return nil, err
		}
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
