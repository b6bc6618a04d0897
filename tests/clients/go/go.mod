module driver

go 1.19

require lockkeeper.example/go v0.0.0

replace lockkeeper.example/go => ../../../clients/go
