module zoo/go-old

go 1.21

require (
	github.com/coreos/etcd v2.3.0+incompatible
	go.etcd.io/bbolt v1.3.6
)

require golang.org/x/sys v0.0.0-20200923182605-d9f96fdee20d // indirect
