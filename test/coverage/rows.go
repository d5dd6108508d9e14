package main

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
)

// table is one part of the API with the rows that cover it.
type table struct {
	title string
	// what names the part in errors.
	what string
	// api is the whole part: calls, or paths of fields.
	api  []string
	rows []row
	// refused returns the fields of the part that a refusal of the engine docker is about.
	refused func(translate.Refusal) []string
}

// row is a group of calls or fields that one test covers.
type row struct {
	// name is also the subtest's name.
	name string
	// covers are names of calls or paths of fields; "a.{b,c}" stands for a.b and a.c.
	covers []string
	// test is the test function that has the subtest; whole says that the row's test is this
	// function with all its subtests.
	test  string
	whole bool
	// needs are names of abilities.
	needs []string
	// note is additional text for the reader, "" for none.
	note string
	// later is true if berth answers Unimplemented. The test requires this answer.
	later bool
}

// paths expands covers.
func (r row) paths() ([]string, error) {
	var all []string
	for _, pattern := range r.covers {
		paths, err := expand(pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, paths...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it covers nothing")
	}
	return all, nil
}

func allTables() []table {
	return []table{
		{"Calls", "calls", calls(), callRows(), func(translate.Refusal) []string { return nil }},
		{"Fields of a sandbox", "PodSandboxConfig", fieldsOf(&runtimeapi.PodSandboxConfig{}), sandboxRows(), func(r translate.Refusal) []string { return r.Sandbox }},
		{"Fields of a container", "ContainerConfig", fieldsOf(&runtimeapi.ContainerConfig{}), containerRows(), func(r translate.Refusal) []string { return r.Container }},
	}
}

// resourceFields are all fields of LinuxContainerResources.
const resourceFields = "{cpu_period,cpu_quota,cpu_shares,memory_limit_in_bytes,oom_score_adj,cpuset_cpus,cpuset_mems," +
	"hugepage_limits.{page_size,limit},unified,memory_swap_limit_in_bytes}"

// usernsFields are all fields of UserNamespace.
const usernsFields = "{mode,{uids,gids}.{host_id,container_id,length}}"

// security is the path of a security context's fields.
const security = "linux.security_context."
