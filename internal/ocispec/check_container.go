package ocispec

import (
	"errors"
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckContainer judges a container's request before anything is made for it; see
// CheckSandbox.
func CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	if config == nil {
		return invalid("config", "is missing")
	}
	if config.GetMetadata() == nil {
		return invalid("config.metadata", "is missing")
	}
	return errors.Join(
		checkName("config.metadata.name", config.GetMetadata().GetName(), true),
		checkImage(config.GetImage()),
		checkCommand(config),
		checkEnvs(config.GetEnvs()),
		checkMounts(config.GetMounts(), sandbox),
		checkDevices(config),
		checkMap("config.labels", config.GetLabels()),
		checkMap("config.annotations", config.GetAnnotations()),
		checkCgroupns(config.GetAnnotations(), securityContext(config).GetPrivileged(), hasUserNamespace(sandbox)),
		checkExtensions(config, sandbox),
		checkLogPath(config.GetLogPath(), sandbox),
		checkStopSignal(config.GetStopSignal()),
		CheckResources(FieldCreate, config.GetLinux().GetResources()),
		checkContainerSecurity(config, sandbox),
		checkNoWindows(config.GetWindows() != nil),
	)
}

func checkImage(image *runtimeapi.ImageSpec) error {
	if image.GetImage() == "" {
		return invalid("config.image.image", "is missing")
	}
	if handler := image.GetRuntimeHandler(); handler != "" {
		return unsupported("config.image.runtime_handler", "unknown runtime handler %q", handler)
	}
	return nil
}

func checkCommand(config *runtimeapi.ContainerConfig) error {
	for _, list := range []struct {
		name   string
		values []string
	}{{"command", config.GetCommand()}, {"args", config.GetArgs()}} {
		for i, value := range list.values {
			if strings.ContainsRune(value, 0) {
				return invalid(index("config."+list.name, i, ""), "contains a NUL")
			}
		}
	}
	if err := checkLength("config.working_dir", config.GetWorkingDir()); err != nil {
		return err
	}
	if dir := config.GetWorkingDir(); dir != "" && (!path.IsAbs(dir) || strings.ContainsRune(dir, 0)) {
		return invalid("config.working_dir", "%q is not an absolute path", dir)
	}
	return nil
}

func checkEnvs(envs []*runtimeapi.KeyValue) error {
	for i, kv := range envs {
		if key := kv.GetKey(); key == "" || strings.Contains(key, "=") || hasControl(key) {
			return invalid(index("config.envs", i, "key"), "%q is no name of a variable", key)
		}
		if strings.ContainsRune(string(kv.GetValue()), 0) {
			return invalid(index("config.envs", i, "value"), "the value of %s contains a NUL", kv.GetKey())
		}
	}
	return nil
}

func checkDevices(config *runtimeapi.ContainerConfig) error {
	if n := len(config.GetDevices()); n > maxDevices {
		return invalid("config.devices", "%d are more than %d", n, maxDevices)
	}
	for i, d := range config.GetDevices() {
		if err := checkDevice(i, d); err != nil {
			return err
		}
	}
	_, err := CDIDevices(config)
	return err
}

func checkDevice(i int, d *runtimeapi.Device) error {
	from, to := d.GetHostPath(), d.GetContainerPath()
	if err := checkLength(index("config.devices", i, "host_path"), from); err != nil {
		return err
	}
	if err := checkLength(index("config.devices", i, "container_path"), to); err != nil {
		return err
	}
	if !path.IsAbs(from) || hasControl(from) {
		return invalid(index("config.devices", i, "host_path"), "%q is not an absolute path", from)
	}
	if to != "" && (!path.IsAbs(to) || hasControl(to) || path.Clean(to) == "/") {
		return invalid(index("config.devices", i, "container_path"), "%q is not an absolute path below /", to)
	}
	for _, virtual := range []string{"/proc", "/sys"} {
		if isBelow(path.Clean(to), virtual) {
			return invalid(index("config.devices", i, "container_path"), "%q is in %s, where no node can be made", to, virtual)
		}
	}
	if !isAll(d.GetPermissions(), "rwm") {
		return invalid(index("config.devices", i, "permissions"), "%q is not made of r, w and m", d.GetPermissions())
	}
	return nil
}

// maxDevices bounds how many devices one container may ask for by path.
const maxDevices = 1024

func checkLogPath(logPath string, sandbox *runtimeapi.PodSandboxConfig) error {
	if logPath == "" {
		return nil
	}
	if err := checkLength("config.log_path", path.Join(sandbox.GetLogDirectory(), logPath)); err != nil {
		return err
	}
	clean := path.Clean(logPath)
	if path.IsAbs(logPath) || hasDotDot(logPath) || hasControl(logPath) || clean == "." || strings.HasSuffix(logPath, "/") {
		return invalid("config.log_path", "%q is not the path of a file below the sandbox's log directory", logPath)
	}
	return nil
}

func checkStopSignal(signal runtimeapi.Signal) error {
	if _, ok := runtimeapi.Signal_name[int32(signal)]; !ok {
		return invalid("config.stop_signal", "unknown signal %d", signal)
	}
	return nil
}

func checkContainerSecurity(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	const field = "config.linux.security_context."
	security := securityContext(config)
	if security.GetPrivileged() && !sandboxSecurityContext(sandbox).GetPrivileged() {
		return invalid(field+"privileged", "no privileged container allowed in sandbox")
	}
	_, err := Capabilities(config, Host{}, nil)
	return errors.Join(
		err,
		checkUser(security),
		checkGroups(security.GetSupplementalGroups(), security.GetSupplementalGroupsPolicy()),
		checkNamespaces(security.GetNamespaceOptions(), false),
		checkSharedUserNamespace(security.GetNamespaceOptions().GetUsernsOptions(), sandboxSecurityContext(sandbox).GetNamespaceOptions().GetUsernsOptions()),
		checkSharedNamespaces(security.GetNamespaceOptions(), sandboxSecurityContext(sandbox).GetNamespaceOptions()),
		checkSELinux(security.GetSelinuxOptions()),
		checkSeccomp(security.GetSeccomp(), oldSeccomp(security)),
		checkAppArmor(security.GetApparmor(), oldAppArmor(security)),
		checkPaths(field+"masked_paths", security.GetMaskedPaths()),
		checkPaths(field+"readonly_paths", security.GetReadonlyPaths()),
	)
}

// maxPaths bounds lists of paths: each is a mount.
const maxPaths = 1024

func checkPaths(field string, paths []string) error {
	if len(paths) > maxPaths {
		return invalid(field, "%d are more than %d", len(paths), maxPaths)
	}
	for i, p := range paths {
		if err := checkLength(index(field, i, ""), p); err != nil {
			return err
		}
		if !path.IsAbs(p) || hasControl(p) {
			return invalid(index(field, i, ""), "%q is not an absolute path", p)
		}
	}
	return nil
}
