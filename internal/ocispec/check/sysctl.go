package check

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// maxSysctls is far above what a namespace has.
const maxSysctls = 4096

func checkSysctls(sysctls map[string]string, namespaces *runtimeapi.NamespaceOption) error {
	if len(sysctls) > maxSysctls {
		return fielderror.Invalid("config.linux.sysctls", "%d are more than %d", len(sysctls), maxSysctls)
	}
	named := map[string]string{} // each file's name
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		field := fmt.Sprintf("config.linux.sysctls[%q]", name)
		file := request.SysctlFile(name)
		if err := checkLength("config.linux.sysctls", file); err != nil {
			return err
		}
		if other, twice := named[file]; twice {
			return fielderror.Invalid(field, "is the same as %q", other)
		}
		named[file] = name
		if request.HasControl(name) || path.Clean(file) != file || hasDotDot(file) {
			return fielderror.Invalid(field, "is not a sysctl")
		}
		if strings.ContainsAny(sysctls[name], "\n\x00") {
			return fielderror.Invalid(field, "the value %q has more than one line", sysctls[name])
		}
		mode := runtimeapi.NamespaceMode_POD
		namespace := request.SysctlNamespace(name)
		switch namespace {
		case request.SysctlNet:
			mode = namespaces.GetNetwork()
		case request.SysctlIPC:
			mode = namespaces.GetIpc()
		default:
			return fielderror.Invalid(field, "is not in a separate kernel namespace")
		}
		if mode == runtimeapi.NamespaceMode_NODE {
			return fielderror.Invalid(field, "not allowed in the host's %s namespace", namespace)
		}
	}
	return nil
}
