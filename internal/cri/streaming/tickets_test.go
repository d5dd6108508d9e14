package streaming

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func TestTicketsAreGoodOnceAndForOneVerb(t *testing.T) {
	var waiting tickets
	now := time.Now()
	token, err := waiting.issue("exec", func(http.ResponseWriter, *http.Request) {}, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := waiting.take("attach", token, now); ok {
		t.Error("a token for exec was good for attach")
	}
	if _, ok := waiting.take("exec", token, now); !ok {
		t.Error("the token was refused")
	}
	if _, ok := waiting.take("exec", token, now); ok {
		t.Error("the token was good twice")
	}
}

func TestTicketsExpire(t *testing.T) {
	var waiting tickets
	now := time.Now()
	token, err := waiting.issue("exec", nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := waiting.take("exec", token, now.Add(ticketLife)); ok {
		t.Error("the token outlived its time")
	}
}

func TestExpiredTicketsAreNotKept(t *testing.T) {
	var waiting tickets
	now := time.Now()
	for i := range 3 {
		if _, err := waiting.issue("exec", nil, now.Add(time.Duration(i)*2*ticketLife)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(waiting.waiting); n != 1 {
		t.Errorf("%d tickets are kept, want the last one", n)
	}
}

func TestTicketsAreBounded(t *testing.T) {
	var waiting tickets
	now := time.Now()
	for range maxTickets {
		if _, err := waiting.issue("exec", nil, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := waiting.issue("exec", nil, now); !errors.Is(err, errs.Exhausted) {
		t.Errorf("got %v", err)
	}
	if _, err := waiting.issue("exec", nil, now.Add(ticketLife)); err != nil {
		t.Errorf("expired tickets take room: %v", err)
	}
}

func TestURLsRequireWellFormedRequests(t *testing.T) {
	s := serve(t, &fake{})
	cases := map[string]struct {
		err  func() error
		want string
	}{
		"exec without id": {func() error {
			_, err := s.ExecURL(&runtimeapi.ExecRequest{Cmd: []string{"x"}, Stdout: true})
			return err
		}, "container_id is empty"},
		"exec without command": {func() error {
			_, err := s.ExecURL(&runtimeapi.ExecRequest{ContainerId: "c", Stdout: true})
			return err
		}, "cmd is empty"},
		"exec without streams": {func() error {
			_, err := s.ExecURL(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}})
			return err
		}, "one of stdin, stdout, or stderr must be set"},
		"attach with tty and stderr": {func() error {
			_, err := s.AttachURL(&runtimeapi.AttachRequest{ContainerId: "c", Tty: true, Stderr: true})
			return err
		}, "tty and stderr cannot both be true"},
		"port out of range": {func() error {
			_, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p", Port: []int32{70000}})
			return err
		}, "port 70000"},
	}
	for name, c := range cases {
		if err := c.err(); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestUnknownTokenIsNotFound(t *testing.T) {
	s := serve(t, &fake{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Address()+"/exec/NOSUCH", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("got %s", resp.Status)
	}
}

func TestListenRefusesAddressesThatNoClientCanDial(t *testing.T) {
	s, err := Listen(context.Background(), Options{Address: "0.0.0.0:0", Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		s.Close()
		t.Fatal("0.0.0.0 was accepted")
	}
}
