// A header of another project.
#pragma once
#error "this is not the header of Sestina"
