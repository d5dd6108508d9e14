package taskapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes" //nolint:depguard // what shims answer with
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// shim is a shim of containerd's own modules. It answers with what it was asked.
type shim struct {
	task.TTRPCTaskService
	got       chan proto.Message
	namespace string
	exited    time.Time
}

func (s *shim) answer(ctx context.Context, m proto.Message) error {
	s.namespace, _ = ttrpc.GetMetadataValue(ctx, "containerd-namespace-ttrpc")
	s.got <- m
	return nil
}

func (s *shim) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	return &task.CreateTaskResponse{Pid: 4711}, s.answer(ctx, r)
}

func (s *shim) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	return &task.StartResponse{Pid: 4711}, s.answer(ctx, r)
}

func (s *shim) Exec(ctx context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) State(ctx context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	return &task.StateResponse{ID: r.ID, Pid: 12, Status: tasktypes.Status_RUNNING, Bundle: "/b", Terminal: true, ExitStatus: 7}, s.answer(ctx, r)
}

func (s *shim) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	return &task.WaitResponse{ExitStatus: 137, ExitedAt: timestamppb.New(s.exited)}, s.answer(ctx, r)
}

func (s *shim) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	return &task.DeleteResponse{Pid: 12, ExitStatus: 3, ExitedAt: timestamppb.New(s.exited)}, s.answer(ctx, r)
}

func (s *shim) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) Update(ctx context.Context, r *task.UpdateTaskRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) ResizePty(ctx context.Context, r *task.ResizePtyRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) CloseIO(ctx context.Context, r *task.CloseIORequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) Shutdown(ctx context.Context, r *task.ShutdownRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.answer(ctx, r)
}

func (s *shim) Connect(ctx context.Context, r *task.ConnectRequest) (*task.ConnectResponse, error) {
	return &task.ConnectResponse{ShimPid: 4711, TaskPid: 12, Version: "v"}, s.answer(ctx, r)
}

func (s *shim) Pause(ctx context.Context, _ *task.PauseRequest) (*emptypb.Empty, error) {
	<-ctx.Done() // never
	return nil, ctx.Err()
}

func serve(t *testing.T, s task.TTRPCTaskService) (*Client, net.Conn) {
	t.Helper()
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	task.RegisterTTRPCTaskService(server, s)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(context.Background(), listener)
	t.Cleanup(func() { server.Close() })
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(conn, 3, "space")
	t.Cleanup(c.Close)
	return c, conn
}

// TestCalls: a shim of containerd's modules understands every call, and its answers are understood.
func TestCalls(t *testing.T) {
	s := &shim{got: make(chan proto.Message, 1), exited: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	c, _ := serve(t, s)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	wantExit := func(e *Exit, err error, code int32) error {
		if err == nil && (e.Code != code || !e.At.Equal(s.exited)) {
			err = fmt.Errorf("exit %+v", e)
		}
		return err
	}
	wantPid := func(pid int, err error) error {
		if err == nil && pid != 4711 {
			err = fmt.Errorf("pid %d", pid)
		}
		return err
	}
	ofSpec := func(name, value string) *anypb.Any {
		return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/" + name, Value: []byte(value)}
	}
	for _, tc := range []struct {
		call func() error
		want proto.Message
	}{
		{func() error {
			return wantPid(c.Create(ctx, "id", "/b", Stdio{true, "/0", "/1", "/2"}, Any("url", []byte("value"))))
		}, &task.CreateTaskRequest{ID: "id", Bundle: "/b", Terminal: true, Stdin: "/0", Stdout: "/1", Stderr: "/2", Options: &anypb.Any{TypeUrl: "url", Value: []byte("value")}}},
		{func() error { return wantPid(c.Start(ctx, "id", "e")) }, &task.StartRequest{ID: "id", ExecID: "e"}},
		{
			func() error { return c.Exec(ctx, "id", "e", Stdio{false, "/0", "/1", "/2"}, []byte("{}")) },
			&task.ExecProcessRequest{ID: "id", ExecID: "e", Stdin: "/0", Stdout: "/1", Stderr: "/2", Spec: ofSpec("Process", "{}")},
		},
		{func() error {
			st, err := c.State(ctx, "id", "e")
			if err == nil && *st != (State{"id", 12, Running, 7}) {
				err = fmt.Errorf("state %+v", st)
			}
			return err
		}, &task.StateRequest{ID: "id", ExecID: "e"}},
		{func() error { e, err := c.Wait(ctx, "id", ""); return wantExit(e, err, 137) }, &task.WaitRequest{ID: "id"}},
		{func() error { e, err := c.Delete(ctx, "id", "e"); return wantExit(e, err, 3) }, &task.DeleteRequest{ID: "id", ExecID: "e"}},
		{func() error { return c.Kill(ctx, "id", "e", 15, true) }, &task.KillRequest{ID: "id", ExecID: "e", Signal: 15, All: true}},
		{func() error { return c.Update(ctx, "id", []byte("{}")) }, &task.UpdateTaskRequest{ID: "id", Resources: ofSpec("LinuxResources", "{}")}},
		{func() error { return c.ResizePty(ctx, "id", "e", 80, 24) }, &task.ResizePtyRequest{ID: "id", ExecID: "e", Width: 80, Height: 24}},
		{func() error { return c.CloseIO(ctx, "id", "e") }, &task.CloseIORequest{ID: "id", ExecID: "e", Stdin: true}},
		{func() error { return wantPid(c.Connect(ctx, "id")) }, &task.ConnectRequest{ID: "id"}},
		{func() error { return c.Shutdown(ctx, "id") }, &task.ShutdownRequest{ID: "id"}},
	} {
		if err := tc.call(); err != nil {
			t.Errorf("%T: %v", tc.want, err)
			continue
		}
		if got := <-s.got; !proto.Equal(got, tc.want) {
			t.Errorf("the shim got %v, want %v", got, tc.want)
		}
		if s.namespace != "space" {
			t.Errorf("namespace %q", s.namespace)
		}
	}
}

// errorShim answers Wait with an error.
type errorShim struct {
	shim
	err error
}

func (s *errorShim) Wait(context.Context, *task.WaitRequest) (*task.WaitResponse, error) {
	return nil, s.err
}

func TestKindsOfErrors(t *testing.T) {
	for code, kind := range map[codes.Code]error{
		codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.Exists, codes.FailedPrecondition: errs.State,
		codes.Unimplemented: errs.Unsupported, codes.Unavailable: errs.Unavailable, codes.Unknown: nil,
	} {
		s := &errorShim{err: status.Error(code, "no luck")}
		server, err := ttrpc.NewServer()
		if err != nil {
			t.Fatal(err)
		}
		task.RegisterTTRPCTaskService(server, s)
		ours, theirs := net.Pipe()
		listener := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		listener.conn <- theirs
		go server.Serve(context.Background(), listener)
		c := NewClient(ours, 3, "space")
		_, err = c.Wait(t.Context(), "id", "")
		if errs.Kind(err) != kind || err == nil || err.Error() != "no luck" { //nolint:errorlint // a kind
			t.Errorf("%v: %v of kind %v, want %v", code, err, errs.Kind(err), kind)
		}
		c.Close()
		server.Close()
	}
}

type oneConn struct {
	conn   chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// endedShim says that all processes have ended.
type endedShim struct{ task.TTRPCTaskService }

func (endedShim) Wait(context.Context, *task.WaitRequest) (*task.WaitResponse, error) {
	return &task.WaitResponse{}, nil
}

// TestManyCallsAtOnce: a shim refuses a stream whose id is lower than that of one before, so requests are written
// in the order of their ids.
func TestManyCallsAtOnce(t *testing.T) {
	c, _ := serve(t, endedShim{})
	var calls errgroup.Group
	for range 50 {
		calls.Go(func() error {
			for range 40 {
				if _, err := c.Wait(t.Context(), "id", ""); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
}

// TestGiveUpInAWrite: calls to a shim that does not read end with their contexts. The connection and its other
// calls outlive them: when the shim reads, it gets whole requests, in order.
func TestGiveUpInAWrite(t *testing.T) {
	ours, theirs := net.Pipe()
	c := NewClient(ours, 3, "space")
	defer c.Close()
	waits := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := c.Wait(ctx, "id", "")
			done <- err
		}()
		return done
	}
	ctx, stop := context.WithCancel(t.Context())
	gone := waits(ctx)
	half := make([]byte, 3)
	if _, err := io.ReadFull(theirs, half); err != nil { // the request is being written
		t.Fatal(err)
	}
	later := waits(ctx) // it waits for its turn
	stays := waits(t.Context())
	stop()
	for _, each := range []chan error{gone, later} {
		if err := <-each; !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was cancelled: %v", err)
		}
	}
	select {
	case <-c.Closed():
		t.Fatal("the connection has ended with a call that was cancelled")
	case err := <-stays:
		t.Fatalf("the other call: %v", err)
	default:
	}
	first, err := readFrame(io.MultiReader(bytes.NewReader(half), theirs))
	if err != nil || first.stream != 1 {
		t.Fatalf("the request that was cut off: %+v %v", first, err)
	}
	second, err := readFrame(theirs)
	if err != nil || second.stream != 3 {
		t.Fatalf("the request after it: %+v %v", second, err)
	}
	for _, stream := range []uint32{first.stream, second.stream} {
		if err := writeFrame(theirs, frame{stream: stream, kind: frameResponse, data: Message{}.Embed(2, Message{}.Number(1, 7))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-stays; err != nil {
		t.Errorf("the other call: %v", err)
	}
	if len(c.waiting) != 0 {
		t.Errorf("%d calls wait", len(c.waiting))
	}
}

// TestAbortOfASharedConnection: a shim sees the end of a connection that is aborted, while another process has a
// descriptor of it. Each round is a race between Abort and the client's reader, which sees the end too.
func TestAbortOfASharedConnection(t *testing.T) {
	for round := range 300 {
		server, ours, err := sysfd.SocketPair()
		if err != nil {
			t.Fatal(err)
		}
		keepers, err := sysfd.Duplicate(ours)
		if err != nil {
			t.Fatal(err)
		}
		client, err := sysfd.FileUnixConn(ours)
		if err != nil {
			t.Fatal(err)
		}
		NewClient(client, 3, "space").Abort()
		err = server.SetReadDeadline(time.Now().Add(10 * time.Second))
		if err == nil {
			_, err = server.Read(make([]byte, 1))
		}
		if !errors.Is(err, io.EOF) {
			t.Fatalf("round %d: the shim reads %v, want the end of the connection", round, err)
		}
		server.Close()
		keepers.Close()
	}
}

// TestLongRequest: a request that ttrpc does not allow is refused, and the connection stays.
func TestLongRequest(t *testing.T) {
	s := &shim{got: make(chan proto.Message, 1)}
	c, _ := serve(t, s)
	if err := c.Update(t.Context(), "id", make([]byte, maxData)); !errors.Is(err, errs.Invalid) {
		t.Errorf("a request of 4 MiB: %v", err)
	}
	if _, err := c.Wait(t.Context(), "id", ""); err != nil {
		t.Errorf("a call after it: %v", err)
	}
}

// A call ends with the connection, whatever the shim does.
func TestEndsOfCalls(t *testing.T) {
	for name, answer := range map[string][]byte{
		"garbage":  []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"too long": {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 2, 0},
		"nothing":  nil,
	} {
		ours, theirs := net.Pipe()
		c := NewClient(ours, 3, "space")
		go func() {
			_, _ = readFrame(theirs)
			_, _ = theirs.Write(answer)
			theirs.Close()
		}()
		if _, err := c.Wait(t.Context(), "id", ""); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
}

func TestBootstrap(t *testing.T) {
	b := Bootstrap{ID: "id", Namespace: "space", Events: "/e", SocketDir: "/s", Options: Any("url", []byte("value"))}
	got := &bootstrap.BootstrapParams{}
	if err := proto.Unmarshal(b.Encode(), got); err != nil {
		t.Fatal(err)
	}
	dir := "/s"
	want := &bootstrap.BootstrapParams{
		InstanceID: "id", Namespace: "space", ContainerdTtrpcAddress: "/e", ContainerdGrpcAddress: "/e", SocketDir: &dir,
		Extensions: []*bootstrap.Extension{{Value: &anypb.Any{TypeUrl: "url", Value: []byte("value")}}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseStart(t *testing.T) {
	result := func(version int32, address, protocol string) string {
		data, err := proto.Marshal(&bootstrap.BootstrapResult{Version: version, Address: address, Protocol: protocol, Metadata: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for output, want := range map[string]Address{
		"unix:///run/x\n": {"/run/x", 2},
		`{"version":3,"address":"unix:///run/x","protocol":"ttrpc"}`: {"/run/x", 3},
		result(3, "unix:///run/x", "ttrpc"):                          {"/run/x", 3},
	} {
		if got, err := ParseStart([]byte(output)); err != nil || *got != want {
			t.Errorf("%q: %+v %v, want %+v", output, got, err, want)
		}
	}
	for output, kind := range map[string]error{
		"":                                    nil,
		"soup":                                nil,
		"{":                                   nil,
		"vsock://3:1024":                      errs.Unsupported,
		"unix://relative":                     errs.Unsupported,
		result(4, "unix:///x", "ttrpc"):       errs.Unsupported,
		result(3, "unix:///x", "grpc"):        errs.Unsupported,
		`{"version":1,"address":"unix:///x"}`: errs.Unsupported,
	} {
		if got, err := ParseStart([]byte(output)); err == nil || errs.Kind(err) != kind { //nolint:errorlint // a kind
			t.Errorf("%q: %+v %v, want kind %v", output, got, err, kind)
		}
	}
}

// FuzzParseStart: an accepted address is one that can be reached.
func FuzzParseStart(f *testing.F) {
	f.Add([]byte("unix:///run/x"))
	f.Add([]byte(`{"version":3,"address":"unix:///run/x","protocol":"ttrpc"}`))
	f.Add([]byte("\x08\x03\x12\x0dunix:///run/x\x1a\x05ttrpc"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseStart(data)
		if err == nil && (!filepath.IsAbs(got.Socket) || got.Version < 2 || got.Version > maxVersion) {
			t.Errorf("%q: %+v", data, got)
		}
	})
}

// FuzzAnswer: whatever a shim answers, it is an answer or an error.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x0a\x09\x08\x05\x12\x05where"))
	f.Add([]byte("\x12\x02\x08\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		payload, err := decodeAnswer(data)
		if err != nil {
			return
		}
		e, err := decodeExit(payload, 1)
		if err == nil && e.Code < 0 {
			t.Errorf("code %d", e.Code)
		}
	})
}

// TestEvents: a publisher of containerd's modules is served.
func TestEvents(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go ServeEvents(listener)
	conn, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	for _, topic := range []string{"/tasks/oom", "/tasks/exit"} {
		request := &events.ForwardRequest{Envelope: &types.Envelope{Topic: topic, Namespace: "space", Timestamp: timestamppb.Now()}}
		if _, err := events.NewTTRPCEventsClient(client).Forward(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
}

// The answer to an event has no Status: the shim of gVisor ends when it has an empty one.
func TestEventsAreAnsweredWithoutStatus(t *testing.T) {
	ours, theirs := net.Pipe()
	listener := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conn <- theirs
	go ServeEvents(listener)
	t.Cleanup(func() { listener.Close(); ours.Close() })
	if err := writeFrame(ours, frame{stream: 7, kind: frameRequest}); err != nil {
		t.Fatal(err)
	}
	f, err := readFrame(ours)
	if err != nil || f.stream != 7 || f.kind != frameResponse || len(f.data) != 0 {
		t.Errorf("%+v %v", f, err)
	}
}
