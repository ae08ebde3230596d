package main

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
)

// What a server has of the committed entries.
type table struct {
	sync.Mutex
	values map[int][]byte
}

func (t *table) Apply(log *raft.Log) any {
	t.Lock()
	defer t.Unlock()
	t.values[int(binary.BigEndian.Uint32(log.Data))] = log.Data[4:]
	return nil
}

func (t *table) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("no snapshots") }
func (t *table) Restore(io.ReadCloser) error         { return errors.New("no snapshots") }

// Three servers in this process, each with its log in a directory of its own. Their network is in
// memory.
type raftCluster struct {
	servers []*raft.Raft
	tables  []*table
}

// The server that leads the others, once there is one.
func (c raftCluster) leader() (int, error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for i, server := range c.servers {
			if server.State() == raft.Leader && server.VerifyLeader().Error() == nil {
				return i, nil
			}
		}
	}
	return 0, errors.New("no server becomes the leader")
}

func (c raftCluster) put(n int, value []byte) error {
	for {
		leader, err := c.leader()
		if err != nil {
			return err
		}
		entry := append(binary.BigEndian.AppendUint32(nil, uint32(n)), value...)
		if c.servers[leader].Apply(entry, time.Second).Error() == nil {
			return nil
		}
	}
}

func (c raftCluster) get(n int) ([]byte, error) {
	leader, err := c.leader()
	// A leader that has just been elected has not applied yet what a majority had.
	for err == nil && c.servers[leader].Barrier(time.Second).Error() != nil {
		leader, err = c.leader()
	}
	if err != nil {
		return nil, err
	}
	t := c.tables[leader]
	t.Lock()
	defer t.Unlock()
	return t.values[n], nil
}

func openRaftCluster(segment int) (store, error) {
	nodes := []string{"a", "b", "c"}
	var members raft.Configuration
	var transports []*raft.InmemTransport
	for _, node := range nodes {
		address, transport := raft.NewInmemTransport(raft.ServerAddress(node))
		members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(node), Address: address})
		for i, other := range transports {
			other.Connect(address, transport)
			transport.Connect(raft.ServerAddress(nodes[i]), other)
		}
		transports = append(transports, transport)
	}
	var c raftCluster
	for i, node := range nodes {
		config := raft.DefaultConfig()
		config.LocalID = raft.ServerID(node)
		config.HeartbeatTimeout, config.ElectionTimeout = 300*time.Millisecond, 300*time.Millisecond
		config.LeaderLeaseTimeout, config.CommitTimeout = 300*time.Millisecond, 5*time.Millisecond
		config.Logger = hclog.NewNullLogger()
		log, err := raftwal.Open(node, raftwal.WithSegmentSize(segment))
		if err != nil {
			return nil, err
		}
		snapshots := raft.NewDiscardSnapshotStore()
		has, err := raft.HasExistingState(log, log, snapshots)
		if err == nil && !has {
			err = raft.BootstrapCluster(config, log, log, snapshots, transports[i], members)
		}
		if err != nil {
			return nil, err
		}
		t := &table{values: map[int][]byte{}}
		server, err := raft.NewRaft(config, t, log, log, snapshots, transports[i])
		if err != nil {
			return nil, err
		}
		c.servers, c.tables = append(c.servers, server), append(c.tables, t)
	}
	_, err := c.leader()
	return c, err
}

func init() {
	module := "github.com/hashicorp/raft-wal"
	// No log is longer than its first file.
	kinds["raft-3"] = kind{module, func() (store, error) { return openRaftCluster(256 << 10) }}
	kinds["raft-3-files"] = kind{module, func() (store, error) { return openRaftCluster(8 << 10) }}
}
