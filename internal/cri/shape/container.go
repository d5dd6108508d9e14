package shape

import (
	"fmt"
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Container refuses the config of a container.
func Container(config *runtimeapi.ContainerConfig) error {
	if config == nil {
		return invalid("config is missing: CreateContainerRequest.ContainerConfig is nil")
	}
	if config.GetMetadata() == nil {
		return invalid("config.metadata: container config must include metadata")
	}
	if config.GetMetadata().GetName() == "" {
		return invalid("config.metadata.name: CreateContainerRequest.ContainerConfig.Name is empty")
	}
	if err := name("config.metadata.name", config.GetMetadata().GetName()); err != nil {
		return err
	}
	if config.GetImage().GetImage() == "" {
		return invalid("config.image.image is empty")
	}
	if err := logPath(config.GetLogPath()); err != nil {
		return err
	}
	if err := envs(config.GetEnvs()); err != nil {
		return err
	}
	if err := mounts(config.GetMounts()); err != nil {
		return err
	}
	if err := texts("config.labels", config.GetLabels()); err != nil {
		return err
	}
	return texts("config.annotations", config.GetAnnotations())
}

// logPath refuses a path that is not one of a file below the sandbox's log directory.
func logPath(file string) error {
	switch {
	case file == "":
		return nil
	case path.IsAbs(file) || hasDotDot(file):
		return invalid("config.log_path %q leads out of the sandbox's log directory", file)
	case hasControl(file) || path.Clean(file) == "." || strings.HasSuffix(file, "/"):
		return invalid("config.log_path: %q is not the path of a file below the sandbox's log directory", file)
	}
	return pathLength("config.log_path", file)
}

func envs(list []*runtimeapi.KeyValue) error {
	for i, env := range list {
		if env.GetKey() == "" || strings.Contains(env.GetKey(), "=") || hasControl(env.GetKey()) {
			return invalid("config.envs[%d].key %q is empty or has an equals sign or a control character", i, env.GetKey())
		}
		if strings.ContainsRune(string(env.GetValue()), 0) {
			return invalid("config.envs[%d].value (of %s) has a zero byte", i, env.GetKey())
		}
	}
	return nil
}

// maxMounts bounds the mounts of a container.
const maxMounts = 8192

func mounts(list []*runtimeapi.Mount) error {
	if n := len(list); n > maxMounts {
		return invalid("config.mounts: %d are more than %d", n, maxMounts)
	}
	for i, m := range list {
		if err := mount(i, m); err != nil {
			return err
		}
	}
	return nil
}

func mount(i int, m *runtimeapi.Mount) error {
	for _, f := range []struct{ field, path string }{
		{"container_path", m.GetContainerPath()}, {"host_path", m.GetHostPath()}, {"image_sub_path", m.GetImageSubPath()},
	} {
		if err := pathLength(indexed(i, f.field), f.path); err != nil {
			return err
		}
	}
	to, from := m.GetContainerPath(), m.GetHostPath()
	switch {
	case to == "":
		return invalid("%s: Mount.ContainerPath is empty", indexed(i, "container_path"))
	case !path.IsAbs(to) || hasControl(to) || path.Clean(to) == "/":
		return invalid("%s: %q is not an absolute path below /", indexed(i, "container_path"), to)
	case m.GetImage().GetImage() != "":
		return nil
	case from == "":
		return invalid("%s: Mount.HostPath is empty", indexed(i, "host_path"))
	case !path.IsAbs(from):
		return invalid("%s %q is not absolute", indexed(i, "host_path"), from)
	case hasControl(from):
		return invalid("%s: %q is not an absolute path", indexed(i, "host_path"), from)
	}
	return nil
}

// CheckpointLocation refuses what is not the path of a file. Kind Unsupported for the name of an image.
func CheckpointLocation(location string) error {
	switch {
	case location == "":
		return invalid("location is empty")
	case !path.IsAbs(location) && !strings.HasPrefix(location, "."):
		return fmt.Errorf("location: %q is not the absolute path of a file, and checkpoints are not written as images: %w", location, errs.Unsupported)
	case path.Clean(location) != location || !path.IsAbs(location) || location == "/" || strings.ContainsRune(location, 0):
		return invalid("location: %q: want the absolute path of a file, without . and ..", location)
	}
	return nil
}
