package request

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSeccompOf(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}}
	}
	old := func(path string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{SeccompProfilePath: path} //nolint:staticcheck // deprecated, still sent
	}
	privileged := profile(runtimeapi.SecurityProfile_RuntimeDefault, "")
	privileged.Privileged = true
	for _, c := range []struct {
		security *runtimeapi.LinuxContainerSecurityContext
		want     SeccompProfile
	}{
		{nil, SeccompProfile{}},
		{profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), SeccompProfile{Default: true}},
		{profile(runtimeapi.SecurityProfile_Unconfined, ""), SeccompProfile{}},
		{profile(runtimeapi.SecurityProfile_Localhost, "/p.json"), SeccompProfile{Path: "/p.json"}},
		{old("runtime/default"), SeccompProfile{Default: true}},
		{old("unconfined"), SeccompProfile{}},
		{old("localhost//p.json"), SeccompProfile{Path: "/p.json"}},
		{privileged, SeccompProfile{}},
	} {
		got := SeccompOf(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.security}}, SeccompProfile{})
		if got != c.want {
			t.Errorf("%v: %+v, want %+v", c.security, got, c.want)
		}
	}
}

// The default applies to requests without a profile. A deprecated Unconfined and a privileged
// container count as a profile.
func TestDefaultSeccomp(t *testing.T) {
	byDefault := SeccompProfile{Path: "/node.json"}
	for name, c := range map[string]struct {
		security *runtimeapi.LinuxContainerSecurityContext
		want     SeccompProfile
	}{
		"nothing":        {nil, byDefault},
		"unconfined":     {&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}}, SeccompProfile{}},
		"old unconfined": {&runtimeapi.LinuxContainerSecurityContext{SeccompProfilePath: "unconfined"}, SeccompProfile{}}, //nolint:staticcheck // deprecated, still sent
		"a profile":      {&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{}}, SeccompProfile{Default: true}},
		"privileged":     {&runtimeapi.LinuxContainerSecurityContext{Privileged: true}, SeccompProfile{}},
	} {
		got := SeccompOf(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.security}}, byDefault)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAppArmorOf(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}, ApparmorProfile: "hidden"} //nolint:staticcheck // deprecated, still sent
	}
	old := func(name string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: name} //nolint:staticcheck // deprecated, still sent
	}
	for _, c := range []struct {
		security *runtimeapi.LinuxContainerSecurityContext
		want     AppArmorProfile
	}{
		{nil, AppArmorProfile{Default: true}},
		{&runtimeapi.LinuxContainerSecurityContext{Privileged: true}, AppArmorProfile{}},
		{profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), AppArmorProfile{Default: true, Demanded: true}},
		{profile(runtimeapi.SecurityProfile_Unconfined, ""), AppArmorProfile{}},
		{profile(runtimeapi.SecurityProfile_Localhost, "web (x)"), AppArmorProfile{Name: "web (x)", Demanded: true}},
		{profile(runtimeapi.SecurityProfile_Localhost, "localhost/web"), AppArmorProfile{Name: "web", Demanded: true}},
		{old("runtime/default"), AppArmorProfile{Default: true, Demanded: true}},
		{old("unconfined"), AppArmorProfile{}},
		{old("localhost/web"), AppArmorProfile{Name: "web", Demanded: true}},
	} {
		got := AppArmorOf(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: c.security}})
		if got != c.want {
			t.Errorf("%v: %+v, want %+v", c.security, got, c.want)
		}
	}
}
