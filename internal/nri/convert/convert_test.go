package convert

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func pointer[T any](v T) *T { return &v }

// fullSpec has a value in each field that plugins see.
func fullSpec() *specs.Spec {
	return &specs.Spec{
		Annotations: map[string]string{"of": "the spec", "both": "spec"},
		Mounts:      []specs.Mount{{Destination: "/data", Type: "bind", Source: "/srv", Options: []string{"rbind", "ro"}}},
		Hooks:       &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/hook", Args: []string{"hook"}, Env: []string{"A=b"}, Timeout: pointer(3)}}},
		Process: &specs.Process{
			Args: []string{"sleep", "1"}, Env: []string{"A=b"}, OOMScoreAdj: pointer(7),
			User:       specs.User{UID: 1, GID: 2, AdditionalGids: []uint32{3}},
			Rlimits:    []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 2, Soft: 1}},
			IOPriority: &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 4},
			Scheduler:  &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5},
		},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/run/netns/a"}},
			Devices:     []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 1, Minor: 2, FileMode: pointer(os.FileMode(0o600)), UID: pointer(uint32(4))}},
			Sysctl:      map[string]string{"net.a": "1"},
			CgroupsPath: "/kubepods/a",
			NetDevices:  map[string]specs.LinuxNetDevice{"eth1": {Name: "net1"}},
			IntelRdt:    &specs.LinuxIntelRdt{ClosID: "gold", Schemata: []string{"L3:0=f"}, EnableMonitoring: true},
			Seccomp:     &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActErrno, ErrnoRet: pointer(uint(1))}}},
			Resources: &specs.LinuxResources{
				Memory:         &specs.LinuxMemory{Limit: pointer(int64(1 << 20)), Swap: pointer(int64(2 << 20))},
				CPU:            &specs.LinuxCPU{Shares: pointer(uint64(100)), Quota: pointer(int64(200)), Period: pointer(uint64(300)), Cpus: "0", Mems: "0"},
				Pids:           &specs.LinuxPids{Limit: pointer(int64(9))},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}},
				Unified:        map[string]string{"memory.high": "1"},
				Devices:        []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: pointer(int64(1)), Minor: pointer(int64(2)), Access: "rw"}},
			},
		},
	}
}

// TestContainer: every field of a spec and of a request is where plugins look for it.
func TestContainer(t *testing.T) {
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"of": "the request", "both": "request"},
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "example.org/thing=one"}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"},
		}},
	}
	want := &api.Container{
		Name: "main", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"of": "the request", "both": "request"},
		Args:        []string{"sleep", "1"}, Env: []string{"A=b"},
		Mounts:     []*api.Mount{{Destination: "/data", Type: "bind", Source: "/srv", Options: []string{"rbind", "ro"}}},
		Hooks:      &api.Hooks{Poststop: []*api.Hook{{Path: "/bin/hook", Args: []string{"hook"}, Env: []string{"A=b"}, Timeout: &api.OptionalInt{Value: 3}}}},
		Rlimits:    []*api.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 2, Soft: 1}},
		CDIDevices: []*api.CDIDevice{{Name: "example.org/thing=one"}},
		User:       &api.User{Uid: 1, Gid: 2, AdditionalGids: []uint32{3}},
		Linux: &api.LinuxContainer{
			Namespaces:  []*api.LinuxNamespace{{Type: "network", Path: "/run/netns/a"}},
			Devices:     []*api.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 1, Minor: 2, FileMode: &api.OptionalFileMode{Value: 0o600}, Uid: &api.OptionalUInt32{Value: 4}}},
			OomScoreAdj: &api.OptionalInt{Value: 7}, CgroupsPath: "/kubepods/a", Sysctl: map[string]string{"net.a": "1"},
			IoPriority:     &api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 4},
			Scheduler:      &api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 5},
			NetDevices:     map[string]*api.LinuxNetDevice{"eth1": {Name: "net1"}},
			Rdt:            &api.LinuxRdt{ClosId: &api.OptionalString{Value: "gold"}, Schemata: &api.OptionalRepeatedString{Value: []string{"L3:0=f"}}, EnableMonitoring: &api.OptionalBool{Value: true}},
			SeccompProfile: &api.SecurityProfile{ProfileType: api.SecurityProfile_LOCALHOST, LocalhostRef: "/p.json"},
			SeccompPolicy: &api.LinuxSeccomp{
				DefaultAction: "SCMP_ACT_ALLOW",
				Syscalls:      []*api.LinuxSyscall{{Names: []string{"reboot"}, Action: "SCMP_ACT_ERRNO", ErrnoRet: &api.OptionalUInt32{Value: 1}}},
			},
			Resources: &api.LinuxResources{
				Memory:         &api.LinuxMemory{Limit: &api.OptionalInt64{Value: 1 << 20}, Swap: &api.OptionalInt64{Value: 2 << 20}},
				Cpu:            &api.LinuxCPU{Shares: &api.OptionalUInt64{Value: 100}, Quota: &api.OptionalInt64{Value: 200}, Period: &api.OptionalUInt64{Value: 300}, Cpus: "0", Mems: "0"},
				Pids:           &api.LinuxPids{Limit: 9},
				HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}},
				Unified:        map[string]string{"memory.high": "1"},
				Devices:        []*api.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: &api.OptionalInt64{Value: 1}, Minor: &api.OptionalInt64{Value: 2}, Access: "rw"}},
			},
		},
	}
	if diff := cmp.Diff(want, Container(config, fullSpec()), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	Container(config, &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}, Hooks: &specs.Hooks{}}) // a spec without parts
	if profile := Container(&runtimeapi.ContainerConfig{}, nil).GetLinux().GetSeccompProfile(); profile.GetProfileType() != api.SecurityProfile_UNCONFINED {
		t.Errorf("a container without a profile or a filter has %v", profile)
	}
}

// TestResources: limits keep their values on their way to plugins and back.
func TestResources(t *testing.T) {
	want := &runtimeapi.LinuxContainerResources{
		CpuPeriod: 1, CpuQuota: -1, CpuShares: 3, MemoryLimitInBytes: 4, MemorySwapLimitInBytes: 5, CpusetCpus: "0-1", CpusetMems: "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 0}}, Unified: map[string]string{"memory.high": "1"},
	}
	got, err := Update(Resources(want))
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if r := Resources(&runtimeapi.LinuxContainerResources{}); r.GetMemory().GetLimit() != nil || r.GetCpu().GetShares() != nil {
		t.Errorf("limits that nobody set are set for plugins: %v", r)
	}
	_, err = Update(&api.LinuxResources{Pids: &api.LinuxPids{Limit: 1}, RdtClass: api.String("gold")})
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "pids, rdt_class") {
		t.Errorf("an update that CRI cannot express: %v", err)
	}
}

// TestAdjust: each adjustment of the API changes its field of the spec, and no other.
func TestAdjust(t *testing.T) {
	var injected []string
	for name, c := range map[string]struct {
		adjust func(*api.ContainerAdjustment)
		want   func(*specs.Spec)
	}{
		"annotations": {
			func(a *api.ContainerAdjustment) { a.AddAnnotation("new", "x"); a.RemoveAnnotation("of") },
			func(s *specs.Spec) { s.Annotations = map[string]string{"new": "x", "both": "spec"} },
		},
		"mounts": {
			func(a *api.ContainerAdjustment) {
				a.RemoveMount("/data")
				a.AddMount(&api.Mount{Destination: "/b", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro"}})
			},
			func(s *specs.Spec) {
				s.Mounts = []specs.Mount{{Destination: "/b", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro"}}}
			},
		},
		"env": {
			func(a *api.ContainerAdjustment) { a.AddEnv("A", "c"); a.AddEnv("NEW", "d") },
			func(s *specs.Spec) { s.Process.Env = []string{"A=c", "NEW=d"} },
		},
		"env removed": {
			func(a *api.ContainerAdjustment) { a.RemoveEnv("A") },
			func(s *specs.Spec) { s.Process.Env = nil },
		},
		"args": {
			func(a *api.ContainerAdjustment) { a.SetArgs([]string{"true"}) },
			func(s *specs.Spec) { s.Process.Args = []string{"true"} },
		},
		"hooks": {
			func(a *api.ContainerAdjustment) {
				h := []*api.Hook{{Path: "/h"}}
				a.AddHooks(&api.Hooks{Prestart: h, CreateRuntime: h, CreateContainer: h, StartContainer: h, Poststart: h, Poststop: h})
			},
			func(s *specs.Spec) {
				h := []specs.Hook{{Path: "/h"}}
				s.Hooks = &specs.Hooks{Prestart: h, CreateRuntime: h, CreateContainer: h, StartContainer: h, Poststart: h, Poststop: append(s.Hooks.Poststop, h...)} //nolint:staticcheck // old, and part of NRI
			},
		},
		"devices": {
			func(a *api.ContainerAdjustment) {
				a.RemoveDevice("/dev/x")
				a.AddDevice(&api.LinuxDevice{Path: "/dev/y", Type: "b", Major: 8, Minor: 9})
			},
			func(s *specs.Spec) {
				s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/y", Type: "b", Major: 8, Minor: 9}}
				s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
					specs.LinuxDeviceCgroup{Allow: true, Type: "b", Major: pointer(int64(8)), Minor: pointer(int64(9)), Access: "rwm"})
			},
		},
		"CDI": {
			func(a *api.ContainerAdjustment) { a.AddCDIDevice(&api.CDIDevice{Name: "example.org/thing=one"}) },
			func(*specs.Spec) {},
		},
		"rlimits": {
			func(a *api.ContainerAdjustment) { a.AddRlimit("RLIMIT_CORE", 9, 8); a.AddRlimit("RLIMIT_NOFILE", 7, 6) },
			func(s *specs.Spec) {
				s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Hard: 9, Soft: 8}, {Type: "RLIMIT_NOFILE", Hard: 7, Soft: 6}}
			},
		},
		"memory": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxMemoryLimit(10)
				a.SetLinuxMemorySwap(20)
				a.SetLinuxMemoryReservation(30)
				a.SetLinuxMemorySwappiness(40)
				a.SetLinuxMemoryDisableOomKiller()
			},
			func(s *specs.Spec) {
				s.Linux.Resources.Memory = &specs.LinuxMemory{
					Limit: pointer(int64(10)), Swap: pointer(int64(20)), Reservation: pointer(int64(30)), Swappiness: pointer(uint64(40)), DisableOOMKiller: pointer(true),
				}
			},
		},
		"CPU": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxCPUShares(1)
				a.SetLinuxCPUQuota(2)
				a.SetLinuxCPUPeriod(3)
				a.SetLinuxCPUSetCPUs("1")
				a.SetLinuxCPUSetMems("1")
				a.SetLinuxCPURealtimeRuntime(4)
				a.SetLinuxCPURealtimePeriod(5)
			},
			func(s *specs.Spec) {
				s.Linux.Resources.CPU = &specs.LinuxCPU{
					Shares: pointer(uint64(1)), Quota: pointer(int64(2)), Period: pointer(uint64(3)), Cpus: "1", Mems: "1",
					RealtimeRuntime: pointer(int64(4)), RealtimePeriod: pointer(uint64(5)),
				}
			},
		},
		"other limits": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxPidLimits(99)
				a.AddLinuxHugepageLimit("2MB", 2<<20)
				a.AddLinuxUnified("memory.low", "2")
			},
			func(s *specs.Spec) {
				s.Linux.Resources.Pids.Limit = pointer(int64(99))
				s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2 << 20}}
				s.Linux.Resources.Unified = map[string]string{"memory.high": "1", "memory.low": "2"}
			},
		},
		"cgroup and score": {
			func(a *api.ContainerAdjustment) { a.SetLinuxCgroupsPath("/other"); a.SetLinuxOomScoreAdj(pointer(-5)) },
			func(s *specs.Spec) { s.Linux.CgroupsPath, s.Process.OOMScoreAdj = "/other", pointer(-5) },
		},
		"priorities": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_IDLE})
				a.SetLinuxScheduler(&api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_FIFO, Priority: 3})
			},
			func(s *specs.Spec) {
				s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_IDLE}
				s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedFIFO, Priority: 3}
			},
		},
		"seccomp": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: &api.OptionalUInt32{Value: 38}})
			},
			func(s *specs.Spec) {
				s.Linux.Seccomp = &specs.LinuxSeccomp{
					DefaultAction: specs.ActErrno, DefaultErrnoRet: pointer(uint(38)), Architectures: []specs.Arch{}, Flags: []specs.LinuxSeccompFlag{},
				}
			},
		},
		"namespaces": {
			func(a *api.ContainerAdjustment) {
				a.RemoveNamespace(&api.LinuxNamespace{Type: "network"})
				a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "ipc", Path: "/proc/1/ns/ipc"})
			},
			func(s *specs.Spec) {
				s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.IPCNamespace, Path: "/proc/1/ns/ipc"}}
			},
		},
		"sysctls and network devices": {
			func(a *api.ContainerAdjustment) {
				a.SetLinuxSysctl("net.b", "2")
				a.AddLinuxNetDevice("eth2", &api.LinuxNetDevice{Name: "net2"})
			},
			func(s *specs.Spec) {
				s.Linux.Sysctl = map[string]string{"net.a": "1", "net.b": "2"}
				s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth1": {Name: "net1"}, "eth2": {Name: "net2"}}
			},
		},
		"RDT": {
			func(a *api.ContainerAdjustment) { a.SetLinuxRDTClosID("silver") },
			func(s *specs.Spec) { s.Linux.IntelRdt.ClosID = "silver" },
		},
		"memory policy": {
			func(a *api.ContainerAdjustment) { a.SetLinuxMemoryPolicy(api.MpolMode_MPOL_BIND, "0") },
			func(s *specs.Spec) {
				s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "0", Flags: []specs.MemoryPolicyFlagType{}}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			injected = nil
			adjust := &api.ContainerAdjustment{}
			c.adjust(adjust)
			got, want := fullSpec(), fullSpec()
			c.want(want)
			if err := Check(adjust); err != nil {
				t.Error(err)
			}
			if err := Adjust(got, adjust, Names{
				CDI: func(names []string) error { injected = names; return nil },
				BlockIO: func(class string) (*specs.LinuxBlockIO, error) {
					w := uint16(len(class))
					return &specs.LinuxBlockIO{Weight: &w}, nil
				},
				RDT: func(class string) (*specs.LinuxIntelRdt, error) { return &specs.LinuxIntelRdt{ClosID: class}, nil },
			}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if (name == "CDI") != (len(injected) == 1) {
				t.Errorf("injected CDI devices: %v", injected)
			}
		})
	}
}

// TestAdjustRefuses: what berth or the specification does not have is an error, with the field.
func TestAdjustRefuses(t *testing.T) {
	for field, c := range map[string]struct {
		adjust func(*api.ContainerAdjustment)
		kind   error
	}{
		"linux.resources.blockio_class": {func(a *api.ContainerAdjustment) { a.SetLinuxBlockIOClass("fast") }, errs.Unsupported},
		"linux.resources.rdt_class":     {func(a *api.ContainerAdjustment) { a.SetLinuxRDTClass("gold") }, errs.Unsupported},
		"linux.namespaces":              {func(a *api.ContainerAdjustment) { a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "luck"}) }, errs.Invalid},
	} {
		adjust := &api.ContainerAdjustment{}
		c.adjust(adjust)
		err := Adjust(fullSpec(), adjust, Names{
			BlockIO: func(string) (*specs.LinuxBlockIO, error) { return nil, errs.Unsupported },
			RDT:     func(string) (*specs.LinuxIntelRdt, error) { return nil, errs.Unsupported },
		})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestCheck: each fault is reported with its field, all of them together.
func TestCheck(t *testing.T) {
	adjust := &api.ContainerAdjustment{
		Mounts:  []*api.Mount{{Destination: "data"}, {Destination: "/data", Type: "bind", Source: "srv"}},
		Env:     []*api.KeyValue{{Key: ""}, {Key: "A", Value: "b\x00"}},
		Hooks:   &api.Hooks{Prestart: []*api.Hook{{}}, CreateRuntime: []*api.Hook{{}}, CreateContainer: []*api.Hook{{}}, StartContainer: []*api.Hook{{}}, Poststart: []*api.Hook{{}}, Poststop: []*api.Hook{{}}},
		Rlimits: []*api.POSIXRlimit{{Type: "nofile"}, {Type: "RLIMIT_CORE", Soft: 2, Hard: 1}},
		Linux: &api.LinuxContainerAdjustment{
			Devices:     []*api.LinuxDevice{{Path: "x", Type: "c"}, {Path: "/dev/x", Type: "z"}},
			OomScoreAdj: &api.OptionalInt{Value: 1001},
		},
	}
	err := Check(adjust)
	if !errors.Is(err, errs.Invalid) {
		t.Fatalf("%v", err)
	}
	for _, field := range []string{
		"mounts[0].destination", "mounts[1].source", "env[0]", "env[1]", "linux.devices[0].path", "linux.devices[1].type", "rlimits[0].type", "rlimits[1]",
		"hooks.prestart[0].path", "hooks.create_runtime[0].path", "hooks.create_container[0].path", "hooks.start_container[0].path",
		"hooks.poststart[0].path", "hooks.poststop[0].path", "linux.oom_score_adj",
	} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not in %v", field, err)
		}
	}
	removal := &api.ContainerAdjustment{}
	removal.RemoveMount("/data")
	removal.RemoveEnv("A")
	removal.RemoveDevice("/dev/x")
	if err := Check(removal); err != nil {
		t.Errorf("removals: %v", err)
	}
	if err := Check(nil); err != nil {
		t.Error(err)
	}
}
