package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer implements runtimeapi.RuntimeServiceServer. The sandbox is the
// one that was recorded; the request's copy of its configuration is not read.
func (s *Server) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if err := checkSandboxID(req); err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	if err := checkContainerConfig(req.GetConfig()); err != nil {
		return nil, fmt.Errorf("cannot create container: %w", err)
	}
	id, err := s.opts.Lifecycle.CreateContainer(ctx, req.GetPodSandboxId(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// checkContainerConfig refuses what can never be right, before anything is
// recorded. What depends on the image or the host is checked where it is used.
func checkContainerConfig(config *runtimeapi.ContainerConfig) error {
	if config == nil {
		return invalid("config is missing: CreateContainerRequest.ContainerConfig is nil")
	}
	if config.GetMetadata() == nil {
		return invalid("config.metadata: container config must include metadata")
	}
	if err := checkName("config.metadata.name", config.GetMetadata().GetName()); err != nil {
		return err
	}
	if config.GetImage().GetImage() == "" {
		return invalid("config.image.image is empty")
	}
	if path := config.GetLogPath(); path != "" && (!filepath.IsLocal(path) || strings.ContainsRune(path, 0)) {
		return invalid("config.log_path %q leads out of the sandbox's log directory", path)
	}
	for i, env := range config.GetEnvs() {
		if env.GetKey() == "" || strings.ContainsAny(env.GetKey(), "=\x00") {
			return invalid("config.envs[%d].key %q is empty or has an equals sign", i, env.GetKey())
		}
		if strings.ContainsRune(string(env.GetValue()), 0) {
			return invalid("config.envs[%d].value (of %s) has a zero byte", i, env.GetKey())
		}
	}
	return checkMounts(config.GetMounts())
}

func checkMounts(mounts []*runtimeapi.Mount) error {
	for i, m := range mounts {
		if m.GetContainerPath() == "" {
			return invalid("config.mounts[%d].container_path: Mount.ContainerPath is empty", i)
		}
		if m.GetImage().GetImage() != "" {
			continue
		}
		if m.GetHostPath() == "" {
			return invalid("config.mounts[%d].host_path: Mount.HostPath is empty", i)
		}
		if !filepath.IsAbs(m.GetHostPath()) {
			return invalid("config.mounts[%d].host_path %q is not absolute", i, m.GetHostPath())
		}
	}
	return nil
}
