package api_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/errs"
)

// short is a deadline that a hanging engine passes.
const short = 100 * time.Millisecond

// TestEndpoints: what cannot be an engine is an error with the endpoint and what to do.
func TestEndpoints(t *testing.T) {
	for _, test := range []struct {
		name  string
		open  func(t *testing.T) (endpoint string)
		words []string
	}{
		{"absent", func(t *testing.T) string { return "unix://" + fakeengine.Socket(t) }, []string{"there is no socket", "start the engine"}},
		{"a file", func(t *testing.T) string {
			path := fakeengine.Socket(t)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return "unix://" + path
		}, []string{"it is a regular file, not a socket", "docker.endpoint"}},
		{"a directory", func(t *testing.T) string { return "unix://" + t.TempDir() }, []string{"it is a directory, not a socket", "docker.endpoint"}},
		{"datagrams", func(t *testing.T) string {
			path := fakeengine.Socket(t)
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return "unix://" + path
		}, []string{"not a stream socket", "docker.endpoint"}},
		{"nobody listens", func(t *testing.T) string {
			path := fakeengine.Socket(t)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
			return "unix://" + path
		}, []string{"nothing listens on it", "start the engine"}},
		{"another protocol", func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2p1\r\n")
				_, _ = io.Copy(io.Discard, conn)
			})
		}, []string{"does not answer as a Docker engine", "docker.endpoint"}},
		{"closes", func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 4096)) })
		}, []string{"closed the connection", "log"}},
		{"another HTTP server", func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) {
				serveHTTP(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			})
		}, []string{"is not a Docker engine", "status 404", "docker.endpoint"}},
		{"an HTTP server that likes all", func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) { serveHTTP(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") })
		}, []string{"is not a Docker engine", "status 200", "docker.endpoint"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			endpoint := test.open(t)
			c := newClient(t, endpoint, time.Minute)
			_, err := c.Facts(t.Context())
			checkFault(t, err, errs.Unavailable, append(test.words, endpoint)...)
			checkFault(t, list(t, c), errs.Unavailable, append(test.words, endpoint)...)
			_, err = c.ExecAttach(t.Context(), "e", client.ExecAttachOptions{})
			checkFault(t, err, errs.Unavailable, append(test.words, endpoint)...)
			err = <-c.Events(t.Context(), client.EventsListOptions{}).Err
			checkFault(t, err, errs.Unavailable, append(test.words, endpoint)...)
		})
	}
}

// serveHTTP sends one answer to each request of a connection.
func serveHTTP(conn net.Conn, answer string) {
	buffer := make([]byte, 4096)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// TestPermissionDenied: a user who may not use the socket learns it.
func TestPermissionDenied(t *testing.T) {
	e := fakeengine.Start(t, fakeengine.Script{})
	path := strings.TrimPrefix(e.Endpoint, "unix://")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	// A right of root, who connects to every socket.
	if err := asOtherUser(func() {
		c := newClient(t, e.Endpoint, time.Minute)
		checkFault(t, list(t, c), errs.Unavailable, e.Endpoint, "permission denied", "run berth as root")
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAnswers: an engine that misbehaves in one call is an error of that call.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name  string
		at    string
		as    http.HandlerFunc
		kind  error
		words []string
	}{
		{"garbage", "GET /containers/json", fakeengine.Text("<html>"), nil, []string{"cannot be read"}},
		{"another type", "GET /containers/json", fakeengine.Text(`{"a":1}`), nil, []string{"cannot be read"}},
		{"hangs", "GET /containers/json", fakeengine.Silent, errs.Deadline, []string{"has not answered within 100ms", "log"}},
		{"hangs in the answer", "GET /containers/json", fakeengine.Hang("["), errs.Deadline, []string{"has not answered within 100ms"}},
		{"cuts the answer off", "GET /containers/json", fakeengine.CutOff(`[{"Id":"a"`), errs.Unavailable, []string{"closed the connection"}},
		{"sends half of the JSON", "GET /containers/json", fakeengine.Text(`[{"Id":"a"`), errs.Unavailable, []string{"before its answer was complete"}},
		{
			"disk full", "GET /containers/json",
			fakeengine.Fail(http.StatusInternalServerError, "mkdir /var/lib/docker/overlay2/x: no space left on device"),
			errs.Exhausted,
			[]string{"no space left on device"},
		},
		{"fails", "GET /containers/json", fakeengine.Fail(http.StatusInternalServerError, "out of luck"), nil, []string{"out of luck"}},
		{"fails at the first call", "*", fakeengine.Fail(http.StatusInternalServerError, "out of luck"), nil, []string{"out of luck"}},
		{"conflict", "GET /containers/json", fakeengine.Fail(http.StatusConflict, "the name is in use"), errs.Exists, []string{"the name is in use"}},
		{"not found", "GET /containers/json", fakeengine.Fail(http.StatusNotFound, "no such container"), errs.NotFound, []string{"no such container"}},
		{"refused", "GET /containers/json", fakeengine.Fail(http.StatusBadRequest, "bad filter"), errs.Invalid, []string{"bad filter"}},
		{"not implemented", "GET /containers/json", fakeengine.Fail(http.StatusNotImplemented, "no"), errs.Unsupported, nil},
		{"unavailable", "GET /containers/json", fakeengine.Fail(http.StatusServiceUnavailable, "later"), errs.Unavailable, []string{"later"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{test.at: test.as}})
			c := newClient(t, e.Endpoint, short)
			err := list(t, c)
			checkFault(t, err, test.kind, append(test.words, "docker list containers")...)
			if test.at != "*" { // other calls work
				if _, err := c.Facts(t.Context()); err != nil {
					t.Error(err)
				}
			}
			count := c.Counts()["list containers"]
			late := uint64(0)
			if test.kind == errs.Deadline { //nolint:errorlint // a value of the table
				late = 1
			}
			if count.Calls != 1 || count.Errors != 1 || count.Timeouts != late || count.Took <= 0 {
				t.Errorf("counted: %+v", count)
			}
		})
	}
}

// TestAnswersOfInfo: the library reports faults of some answers as text alone.
func TestAnswersOfInfo(t *testing.T) {
	for name, test := range map[string]struct {
		as   http.HandlerFunc
		kind error
		word string
	}{
		"garbage": {fakeengine.Text("<html>"), nil, "cannot be read"},
		"cut off": {fakeengine.CutOff(`{"ID":`), nil, "cannot be read"},
		"hangs":   {fakeengine.Hang(`{"ID":`), errs.Deadline, "has not answered"},
	} {
		t.Run(name, func(t *testing.T) {
			e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"GET /info": test.as}})
			_, err := newClient(t, e.Endpoint, short).Facts(t.Context())
			checkFault(t, err, test.kind, "docker info", e.Endpoint, test.word)
		})
	}
}

// TestStreams: the begin of an answer that streams has a deadline, too, and its end has a kind.
func TestStreams(t *testing.T) {
	for _, test := range []struct {
		name string
		at   string
		as   http.HandlerFunc
		call func(t *testing.T, c *api.Client) error
		kind error
	}{
		{"logs hang", "GET /containers/a/logs", fakeengine.Silent, logs, errs.Deadline},
		{"exec hangs", "POST /exec/e/start", fakeengine.Silent, execAttach, errs.Deadline},
		{"exec of a container that ended", "POST /exec/e/start", fakeengine.Fail(http.StatusConflict, "not running"), execAttach, errs.Exists},
		{"exec is gone", "POST /exec/e/start", fakeengine.Fail(http.StatusNotFound, "no exec"), execAttach, errs.NotFound},
		{"attach hangs", "POST /containers/a/attach", fakeengine.Silent, attach, errs.Deadline},
		{"events hang", "GET /events", fakeengine.Silent, events, errs.Deadline},
		{"events are cut off", "GET /events", fakeengine.CutOff(`{"Type":`), events, errs.Unavailable},
		{"events end", "GET /events", fakeengine.Text(""), events, errs.Unavailable},
		{"events are garbage", "GET /events", fakeengine.Text("<html>"), events, nil},
		{"events are refused", "GET /events", fakeengine.Fail(http.StatusBadRequest, "bad filter"), events, errs.Invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{test.at: test.as}})
			checkFault(t, test.call(t, newClient(t, e.Endpoint, short)), test.kind)
		})
	}
}

func logs(t *testing.T, c *api.Client) error {
	answer, err := c.ContainerLogs(t.Context(), "a", client.ContainerLogsOptions{ShowStdout: true})
	if err == nil {
		answer.Close()
	}
	return err
}

func execAttach(t *testing.T, c *api.Client) error {
	answer, err := c.ExecAttach(t.Context(), "e", client.ExecAttachOptions{})
	if err == nil {
		answer.Close()
	}
	return err
}

func attach(t *testing.T, c *api.Client) error {
	answer, err := c.ContainerAttach(t.Context(), "a", client.ContainerAttachOptions{Stream: true})
	if err == nil {
		answer.Close()
	}
	return err
}

func events(t *testing.T, c *api.Client) error {
	return <-c.Events(t.Context(), client.EventsListOptions{}).Err
}

// TestAStreamOutlivesTheDeadline: the deadline bounds the begin alone.
func TestAStreamOutlivesTheDeadline(t *testing.T) {
	proceed := make(chan struct{})
	e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /containers/a/logs": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-proceed
			_, _ = io.WriteString(w, "late")
		},
	}})
	c := newClient(t, e.Endpoint, short)
	answer, err := c.ContainerLogs(t.Context(), "a", client.ContainerLogsOptions{ShowStdout: true})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	// A call that hangs passes the deadline for certain.
	e.Replace(fakeengine.Script{Answers: map[string]http.HandlerFunc{"GET /info": fakeengine.Silent}})
	_, err = c.Info(t.Context(), client.InfoOptions{})
	checkFault(t, err, errs.Deadline)
	close(proceed)
	if text, err := io.ReadAll(answer); err != nil || string(text) != "late" {
		t.Errorf("the log is %q, %v", text, err)
	}
}

// TestManyCallersAndAnEngineThatHangs: none waits longer than its own deadline.
func TestManyCallersAndAnEngineThatHangs(t *testing.T) {
	e := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"*": fakeengine.Silent}})
	c := newClient(t, e.Endpoint, short)
	failed := make(chan error)
	for range 20 {
		go func() {
			_, err := c.Version(t.Context())
			failed <- err
		}()
	}
	for range 20 {
		checkFault(t, <-failed, errs.Deadline, e.Endpoint)
	}
}

// asOtherUser runs f on a thread with the file system rights of nobody.
func asOtherUser(f func()) error {
	if os.Geteuid() != 0 {
		f()
		return nil
	}
	const nobody = 65534
	if err := syscall.Setegid(nobody); err != nil {
		return err
	}
	defer func() { _ = syscall.Setegid(0) }()
	if err := syscall.Seteuid(nobody); err != nil {
		return err
	}
	defer func() { _ = syscall.Seteuid(0) }()
	f()
	return nil
}
