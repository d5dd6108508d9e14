package check

import (
	"errors"
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Container checks the config of a container in a sandbox.
func Container(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return errors.Join(
		checkImage(config.GetImage()),
		checkCommand(config),
		checkMounts(config.GetMounts(), sandbox),
		checkDevices(config),
		checkCgroupns(config.GetAnnotations(), request.Security(config).GetPrivileged(), request.HasUserNamespace(sandbox)),
		checkExtensions(config, sandbox),
		checkLogPath(config.GetLogPath(), sandbox),
		checkStopSignal(config.GetStopSignal()),
		Resources(request.FieldCreate, config.GetLinux().GetResources()),
		checkContainerSecurity(config, sandbox),
		checkNoWindows(config.GetWindows() != nil),
	)
}

func checkImage(image *runtimeapi.ImageSpec) error {
	if handler := image.GetRuntimeHandler(); handler != "" {
		return fielderror.Unsupported("config.image.runtime_handler", "unknown runtime handler %q", handler)
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
				return fielderror.Invalid(fielderror.Index("config."+list.name, i, ""), "contains a NUL")
			}
		}
	}
	if err := checkLength("config.working_dir", config.GetWorkingDir()); err != nil {
		return err
	}
	if dir := config.GetWorkingDir(); dir != "" && (!path.IsAbs(dir) || strings.ContainsRune(dir, 0)) {
		return fielderror.Invalid("config.working_dir", "%q is not an absolute path", dir)
	}
	return nil
}

func checkDevices(config *runtimeapi.ContainerConfig) error {
	if n := len(config.GetDevices()); n > maxDevices {
		return fielderror.Invalid("config.devices", "%d are more than %d", n, maxDevices)
	}
	for i, d := range config.GetDevices() {
		if err := checkDevice(i, d); err != nil {
			return err
		}
	}
	_, err := request.CDIDevices(config)
	return err
}

func checkDevice(i int, d *runtimeapi.Device) error {
	from, to := d.GetHostPath(), d.GetContainerPath()
	if err := checkLength(fielderror.Index("config.devices", i, "host_path"), from); err != nil {
		return err
	}
	if err := checkLength(fielderror.Index("config.devices", i, "container_path"), to); err != nil {
		return err
	}
	if !path.IsAbs(from) || request.HasControl(from) {
		return fielderror.Invalid(fielderror.Index("config.devices", i, "host_path"), "%q is not an absolute path", from)
	}
	if to != "" && (!path.IsAbs(to) || request.HasControl(to) || path.Clean(to) == "/") {
		return fielderror.Invalid(fielderror.Index("config.devices", i, "container_path"), "%q is not an absolute path below /", to)
	}
	for _, virtual := range []string{"/proc", "/sys"} {
		if request.IsBelow(path.Clean(to), virtual) {
			return fielderror.Invalid(fielderror.Index("config.devices", i, "container_path"), "%q is in %s, where no node can be made", to, virtual)
		}
	}
	if !request.IsAll(d.GetPermissions(), "rwm") {
		return fielderror.Invalid(fielderror.Index("config.devices", i, "permissions"), "%q is not made of r, w and m", d.GetPermissions())
	}
	return nil
}

// maxDevices bounds how many devices one container may ask for by path.
const maxDevices = 1024

// checkLogPath bounds the whole path; package cri/shape has checked the part below the
// sandbox's log directory.
func checkLogPath(logPath string, sandbox *runtimeapi.PodSandboxConfig) error {
	if logPath == "" {
		return nil
	}
	return checkLength("config.log_path", path.Join(sandbox.GetLogDirectory(), logPath))
}

func checkStopSignal(signal runtimeapi.Signal) error {
	if _, ok := runtimeapi.Signal_name[int32(signal)]; !ok {
		return fielderror.Invalid("config.stop_signal", "unknown signal %d", signal)
	}
	return nil
}

func checkContainerSecurity(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	const field = "config.linux.security_context."
	security := request.Security(config)
	if security.GetPrivileged() && !request.SandboxSecurity(sandbox).GetPrivileged() {
		return fielderror.Invalid(field+"privileged", "no privileged container allowed in sandbox")
	}
	_, err := request.CapabilitiesOf(config)
	return errors.Join(
		err,
		checkUser(security),
		checkGroups(security.GetSupplementalGroups(), security.GetSupplementalGroupsPolicy()),
		checkNamespaces(security.GetNamespaceOptions(), false),
		checkSharedUserNamespace(security.GetNamespaceOptions().GetUsernsOptions(), request.SandboxSecurity(sandbox).GetNamespaceOptions().GetUsernsOptions()),
		checkSharedNamespaces(security.GetNamespaceOptions(), request.SandboxSecurity(sandbox).GetNamespaceOptions()),
		checkSELinux(security.GetSelinuxOptions()),
		checkSeccomp(security.GetSeccomp(), request.OldSeccomp(security)),
		checkAppArmor(security.GetApparmor(), request.OldAppArmor(security)),
		checkPaths(field+"masked_paths", security.GetMaskedPaths()),
		checkPaths(field+"readonly_paths", security.GetReadonlyPaths()),
	)
}

// maxPaths bounds lists of paths: each is a mount.
const maxPaths = 1024

func checkPaths(field string, paths []string) error {
	if len(paths) > maxPaths {
		return fielderror.Invalid(field, "%d are more than %d", len(paths), maxPaths)
	}
	for i, p := range paths {
		if err := checkLength(fielderror.Index(field, i, ""), p); err != nil {
			return err
		}
		if !path.IsAbs(p) || request.HasControl(p) {
			return fielderror.Invalid(fielderror.Index(field, i, ""), "%q is not an absolute path", p)
		}
	}
	return nil
}
