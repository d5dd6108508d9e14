package cri

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/scrub"
)

// rpc is a CRI call as gRPC performs it. decode reads the request.
type rpc struct {
	name string
	call func(ctx context.Context, guard interceptors, decode func(any) error) error
}

// rpcs are all calls that end by themselves, sorted by name. An event stream ends only when its
// client disconnects.
func rpcs(server *Server) []rpc {
	var all []rpc
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, method := range service.Methods {
			all = append(all, rpc{method.MethodName, func(ctx context.Context, guard interceptors, decode func(any) error) error {
				_, err := method.Handler(server, ctx, decode, guard.unary)
				return err
			}})
		}
		for _, stream := range service.Streams {
			info := &grpc.StreamServerInfo{FullMethod: "/" + service.ServiceName + "/" + stream.StreamName}
			all = append(all, rpc{stream.StreamName, func(ctx context.Context, guard interceptors, decode func(any) error) error {
				return guard.stream(server, &serverStream{ctx, decode}, info, stream.Handler)
			}})
		}
	}
	all = slices.DeleteFunc(all, func(r rpc) bool { return r.name == "GetContainerEvents" })
	slices.SortFunc(all, func(a, b rpc) int { return cmp.Compare(a.name, b.name) })
	return all
}

// serverStream has one request and drops the responses.
type serverStream struct {
	ctx    context.Context //nolint:containedctx // required by grpc.ServerStream
	decode func(any) error
}

func (s *serverStream) Context() context.Context     { return s.ctx }
func (s *serverStream) RecvMsg(m any) error          { return s.decode(m) }
func (s *serverStream) SendMsg(any) error            { return nil }
func (s *serverStream) SetHeader(metadata.MD) error  { return nil }
func (s *serverStream) SendHeader(metadata.MD) error { return nil }
func (s *serverStream) SetTrailer(metadata.MD)       {}

// FuzzRequests sends any bytes as the request of any call to a node with pods. Either the call is
// refused: the error has a code that blames the caller or the node, the name of the field, and a
// text that gRPC can carry, and nothing is left behind. Or the call succeeds: its result can be
// undone, and no written file contains a NUL or has a newline in its name.
func FuzzRequests(f *testing.F) {
	node := newFuzzedNode(f)
	calls := rpcs(node.server)
	seeds := fuzzedRequests()
	for i, r := range calls {
		f.Add(byte(i), []byte{})
		for _, seed := range seeds[r.name] {
			data, err := proto.Marshal(seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(byte(i), data)
		}
		delete(seeds, r.name)
	}
	for name := range seeds {
		f.Errorf("a seed for %s, which is no call", name)
	}
	guard := interceptors{log: slog.New(slog.DiscardHandler), scrub: scrub.New()}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		r := calls[int(which)%len(calls)]
		before := node.settled(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var req proto.Message
		malformed := false
		err := r.call(ctx, guard, func(m any) error {
			req, _ = m.(proto.Message)
			malformed = proto.Unmarshal(data, req) != nil // gRPC refuses it
			node.putIDs(req.ProtoReflect())
			if malformed {
				return status.Error(codes.InvalidArgument, "malformed")
			}
			return nil
		})
		if malformed {
			return
		}
		if testing.Verbose() {
			t.Logf("%s(%v): %v", r.name, req, err)
		}
		if err != nil {
			checkRefusal(t, r.name, req, err)
		} else {
			checkTaken(t, req)
		}
		after := node.settled(t)
		if before == after {
			return
		}
		if err != nil && status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s was refused (%v) and left something:\n%s\nwas\n%s", r.name, err, after, before)
		}
		if reads(r.name) {
			t.Errorf("%s reads and has changed something:\n%s\nwas\n%s", r.name, after, before)
		}
		node.checkWritten(t)
		node.renew(t)
	})
}

// checkRefusal checks a response that is an error.
func checkRefusal(t *testing.T, name string, req proto.Message, err error) {
	t.Helper()
	code, text := status.Code(err), status.Convert(err).Message()
	if code == codes.Internal || code == codes.Unknown {
		t.Errorf("%s of %v: %v", name, req, err)
	}
	if !utf8.ValidString(text) {
		t.Errorf("%s answers %q", name, text)
	}
	if code == codes.InvalidArgument && !namesField(req.ProtoReflect(), text) {
		t.Errorf("%s of %v is refused without a field: %s", name, req, text)
	}
}

// fieldPath matches a field, or a nested field, in a text.
var fieldPath = regexp.MustCompile(`[A-Za-z_]+(?:\[[^\]]*\])?(?:\.[A-Za-z_]+(?:\[[^\]]*\])?)*`)

// namesField reports whether the text names a field of the request: the path of a value, or of a
// missing message.
func namesField(req protoreflect.Message, text string) bool {
	leaves := map[string]bool{}
	fieldNames(req.Descriptor(), leaves, 0)
	for _, path := range fieldPath.FindAllString(text, -1) {
		last := path[strings.LastIndexByte(path, '.')+1:]
		last, _, _ = strings.Cut(last, "[")
		if leaves[last] {
			return true
		}
		field := req.Descriptor().Fields().ByName(protoreflect.Name(path))
		if field != nil && !req.Has(field) {
			return true
		}
	}
	return false
}

// fieldNames collects the names of all values that a message can hold. Of nested messages it
// includes only lists, because a list can have a wrong length.
func fieldNames(desc protoreflect.MessageDescriptor, leaves map[string]bool, depth int) {
	const deepest = 6
	for i := range desc.Fields().Len() {
		field := desc.Fields().Get(i)
		message := field.Message()
		if message == nil || field.IsList() || field.IsMap() || strings.HasSuffix(string(message.Name()), "Value") || depth > 0 {
			leaves[string(field.Name())] = true
		}
		if message != nil && depth < deepest {
			fieldNames(message, leaves, depth+1)
		}
	}
}

// putIDs replaces the words "sandbox", "running", "created" and "exited" in a request by ids of the
// node's objects.
func (n *fuzzedNode) putIDs(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsList() || field.IsMap():
		case field.Message() != nil:
			n.putIDs(v.Message())
		case field.Kind() == protoreflect.StringKind && n.ids[v.String()] != "":
			m.Set(field, protoreflect.ValueOfString(n.ids[v.String()]))
		}
		return true
	})
}

// fuzzedRequests are the fuzzer's seeds, by call.
func fuzzedRequests() map[string][]proto.Message {
	const sandbox, running, created, exited = "sandbox", "running", "created", "exited"
	limits := &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: -1, CpuShares: 2, MemoryLimitInBytes: 1 << 20, OomScoreAdj: -997, CpusetCpus: "0-1", CpusetMems: "0",
		MemorySwapLimitInBytes: 1 << 21, Unified: map[string]string{"memory.high": "9"},
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4}},
	}
	labels := map[string]string{"app": "web"}
	image := &runtimeapi.ImageSpec{Image: fuzzedImage}
	all := map[string][]proto.Message{
		"RunPodSandbox":   {&runtimeapi.RunPodSandboxRequest{Config: sandboxRequest()}, &runtimeapi.RunPodSandboxRequest{Config: fuzzedSandbox(), RuntimeHandler: "x"}},
		"CreateContainer": {&runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: fuzzedContainer(limits), SandboxConfig: sandboxRequest()}},
		"StopContainer":   {&runtimeapi.StopContainerRequest{ContainerId: running, Timeout: 30}, &runtimeapi.StopContainerRequest{ContainerId: running, Timeout: -1 << 62}},
		"UpdateContainerResources": {
			&runtimeapi.UpdateContainerResourcesRequest{ContainerId: running, Linux: limits, Annotations: labels},
			&runtimeapi.UpdateContainerResourcesRequest{ContainerId: exited, Linux: limits},
		},
		"UpdatePodSandboxResources": {&runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: sandbox, Overhead: limits, Resources: limits}},
		"ExecSync":                  {&runtimeapi.ExecSyncRequest{ContainerId: running, Cmd: []string{"echo", "x"}, Timeout: 1}, &runtimeapi.ExecSyncRequest{ContainerId: running, Cmd: []string{"exit", "3"}, Timeout: -1}},
		"Exec":                      {&runtimeapi.ExecRequest{ContainerId: running, Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true}},
		"Attach":                    {&runtimeapi.AttachRequest{ContainerId: running, Stdout: true, Stderr: true}},
		"PortForward":               {&runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: []int32{80}}},
		"PullImage":                 {&runtimeapi.PullImageRequest{Image: image, Auth: &runtimeapi.AuthConfig{Username: "u", Password: "p"}, SandboxConfig: sandboxRequest()}},
		"ImageStatus":               {&runtimeapi.ImageStatusRequest{Image: image, Verbose: true}},
		"RemoveImage":               {&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "none"}}},
		"UpdateRuntimeConfig": {&runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.0.0.0/24,fd00::/64"}},
		}},
		"Status":              {&runtimeapi.StatusRequest{Verbose: true}},
		"CheckpointContainer": {&runtimeapi.CheckpointContainerRequest{ContainerId: running, Location: "/x", Timeout: 1}},
		"CheckpointPod":       {&runtimeapi.CheckpointPodRequest{PodSandboxId: sandbox, OutputPath: "/x", ContainerIds: []string{running}, Options: labels}},
		"RestorePod": {&runtimeapi.RestorePodRequest{
			CheckpointPath: "/x", Config: sandboxRequest(), ContainerConfigs: []*runtimeapi.ContainerConfig{fuzzedContainer(limits)},
		}},
	}
	for _, name := range []string{"StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "PodSandboxStats"} {
		all[name] = []proto.Message{&runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox}, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "../x"}}
	}
	for _, name := range []string{"StartContainer", "RemoveContainer", "ContainerStatus", "ContainerStats", "ReopenContainerLog"} {
		for _, id := range []string{running, created, exited, "a\n\x00"} {
			all[name] = append(all[name], &runtimeapi.ContainerStatusRequest{ContainerId: id})
		}
	}
	for _, list := range []struct {
		names  [2]string
		filter proto.Message
	}{
		{[2]string{"ListPodSandbox", "StreamPodSandboxes"}, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			Id: sandbox, LabelSelector: labels, State: &runtimeapi.PodSandboxStateValue{State: 1},
		}}},
		{[2]string{"ListContainers", "StreamContainers"}, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			Id: running, PodSandboxId: sandbox, LabelSelector: labels, State: &runtimeapi.ContainerStateValue{State: 1},
		}}},
		{[2]string{"ListContainerStats", "StreamContainerStats"}, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
			Id: running, PodSandboxId: sandbox, LabelSelector: labels,
		}}},
		{[2]string{"ListPodSandboxStats", "StreamPodSandboxStats"}, &runtimeapi.ListPodSandboxStatsRequest{Filter: &runtimeapi.PodSandboxStatsFilter{
			Id: sandbox, LabelSelector: labels,
		}}},
		{[2]string{"ListImages", "StreamImages"}, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: image}}},
	} {
		for _, name := range list.names {
			all[name] = []proto.Message{list.filter}
		}
	}
	return all
}

// fuzzedSandbox requests every feature of a sandbox.
func fuzzedSandbox() *runtimeapi.PodSandboxConfig {
	config := sandboxRequest()
	config.Metadata.Attempt = 1
	config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080, HostIp: "::1", Protocol: runtimeapi.Protocol_SCTP}}
	config.Labels, config.Annotations = map[string]string{"app": "web"}, map[string]string{"kubernetes.io/ingress-bandwidth": "1M"}
	mapping := []*runtimeapi.IDMapping{{HostId: 65536, ContainerId: 0, Length: 65536}}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: "/kubepods", Sysctls: map[string]string{"net.ipv4.ip_forward": "1"},
		Overhead: &runtimeapi.LinuxContainerResources{CpuShares: 2}, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2},
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Uids: mapping, Gids: mapping}},
			SelinuxOptions:   &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0:c1,c2"},
			RunAsUser:        &runtimeapi.Int64Value{Value: 1}, RunAsGroup: &runtimeapi.Int64Value{Value: 1}, SupplementalGroups: []int64{2},
			Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/x.json"},
		},
	}
	return config
}

// fuzzedContainer requests every feature of a container.
func fuzzedContainer(limits *runtimeapi.LinuxContainerResources) *runtimeapi.ContainerConfig {
	profile := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/x.json"}
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: 1}, Image: &runtimeapi.ImageSpec{Image: fuzzedImage},
		Command: []string{"sleep"}, Args: []string{"1"}, WorkingDir: "/", LogPath: "app-0.log", Tty: true, Stdin: true, StdinOnce: true,
		Envs:   []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c\nd")}},
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"cdi.k8s.io/x": "vendor.com/class=name"},
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/data", HostPath: "/srv", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec"}},
			{ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: fuzzedImage}, ImageSubPath: "a", Readonly: true},
		},
		Devices:    []*runtimeapi.Device{{ContainerPath: "/dev/null", HostPath: "/dev/null", Permissions: "rwm"}},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "vendor.com/class=name"}}, StopSignal: runtimeapi.Signal_SIGNAL_SIGTERM,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: limits,
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Capabilities:     &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "running"},
				RunAsUsername:    "u", SupplementalGroups: []int64{1}, ReadonlyRootfs: true, NoNewPrivs: true,
				MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"}, Seccomp: profile, Apparmor: profile,
			},
		},
	}
}

// failed stops the fuzz target if one of its own steps failed.
func failed(t testing.TB, step string, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", step, err))
	}
}
